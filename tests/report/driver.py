"""The page in a real browser: where things are on the screen, and real clicks on them."""

from importlib.resources import files

import pytest


class Driver:
    """One tab with a page; collects what must not happen."""

    def __init__(self, context, path, fragment=""):
        self.tab = context.new_page()
        self.tab.set_default_timeout(60_000)  # a loaded machine is slow
        self.tab.emulate_media(reduced_motion="reduce")  # a page that still scrolls has nothing in its place
        self.path, self.errors, self.requests = path, [], []
        self.tab.on("console", self._console)
        self.tab.on("pageerror", lambda error: self.errors.append(str(error)))
        self.tab.on("dialog", lambda dialog: (self.errors.append(dialog.message), dialog.dismiss()))
        self.tab.on("request", self._request)
        self.tab.goto(path.as_uri() + fragment)
        self.tab.wait_for_selector("html[data-ready][data-settled]", state="attached")

    def _console(self, message):
        if message.type in ("error", "warning"):
            self.errors.append(message.text)

    def _request(self, request):
        if not request.url.startswith(("data:", "blob:")):
            self.requests.append(request.url)

    def reset(self, fragment=""):
        """The same page as it opens, with nothing selected, at its top."""
        self.js(
            """text => {
                document.activeElement?.blur();
                for (const fold of document.querySelectorAll("details.fold[open]")) fold.open = false;
                location.hash = text || '#';
                scrollTo(0, 0);
            }""",
            fragment,
        )
        self.tab.bring_to_front()  # timers of a tab behind others are slow
        self.tab.mouse.move(0, 0)
        self.settled()

    def js(self, expression, *arguments):
        """Look at something; never used to do what a person would do."""
        return self.tab.evaluate(expression, *arguments)

    def state(self, key):
        return self.js("key => HT.state.get()[key]", key)

    def wait(self, expression, argument=None):
        self.tab.wait_for_function(expression, arg=argument)

    def settled(self):
        """Wait until the page says that nothing is under way, and what it drew is on the screen."""
        self.wait("() => 'settled' in document.documentElement.dataset")
        self.js("() => new Promise(resolve => requestAnimationFrame(() => setTimeout(resolve)))")
        self.wait("() => 'settled' in document.documentElement.dataset")

    def drawn(self, card):
        """Scroll to a card and wait until it shows what is chosen."""
        fold = self.tab.locator(f"details.fold:not([open]):has(#{card}) > summary")
        if fold.count():
            fold.click()
        self.js("id => document.getElementById(id).scrollIntoView({block: 'center'})", card)
        self.wait("id => { const e = document.getElementById(id); return e && !e.closest('[data-due]'); }", card)
        self.settled()
        self.js("id => document.getElementById(id).scrollIntoView({block: 'center'})", f"{card}-plot")
        self.settled()

    def unfold(self, card):
        """Open the first fold of a card; its content is made when it opens."""
        details = self.tab.locator(f"#{card} details").first
        if details.get_attribute("open") is None:
            details.locator("summary").first.click()
        self.tab.locator(f"#{card} td").first.wait_for(state="visible")

    def groups(self):
        """Bring the map, the tree and the affinities onto the screen once."""
        for name in ("tree", "map", "affinity"):
            self.drawn(name)

    def on_screen(self, card, place):
        """A place of a drawing, in pixels of the window."""
        return self.js(
            """([id, [x, y]]) => {
                const drawing = document.querySelector(`#${id}-plot svg`), box = drawing.getBoundingClientRect();
                const view = drawing.viewBox.baseVal;
                return [box.x + x * box.width / view.width, box.y + y * box.height / view.height];
            }""",
            [card, place],
        )

    def click_at(self, card, place, shift=False):
        self.tab.mouse.move(*self.on_screen(card, place))
        if shift:
            self.tab.keyboard.down("Shift")
        self.tab.mouse.down()
        self.tab.mouse.up()
        if shift:
            self.tab.keyboard.up("Shift")
        self.settled()

    def drag(self, card, start, end):
        self.tab.mouse.move(*self.on_screen(card, start))
        self.tab.mouse.down()
        self.tab.mouse.move(*self.on_screen(card, end), steps=4)
        self.tab.mouse.up()
        self.settled()

    def hover_at(self, card, place):
        """The words under the pointer."""
        self.tab.mouse.move(0, 0)
        self.tab.mouse.move(*self.on_screen(card, place))
        self.tab.wait_for_selector("#tooltip", state="visible")
        return self.tab.locator("#tooltip").inner_text()

    # -- where things are ----------------------------------------------------------------------------------

    def head_place(self, head):
        """The middle of a head's picture in the grid, in its drawing."""
        return self.js(
            """head => {
                const {left, top, width, height} = document.querySelector(`.stop[data-head="${head}"]`).style;
                return [parseFloat(left) + parseFloat(width) / 2, parseFloat(top) + parseFloat(height) / 2];
            }""",
            head,
        )

    def select(self, head, shift=False):
        self.js("() => document.getElementById('heads').scrollIntoView()")
        self.settled()
        self.click_at("grid", self.head_place(head), shift)

    def map_place(self, head):
        return self.js("head => HT.views.map.place(head)", head)

    def cell_place(self, card, row, column):
        """The middle of a cell of a matrix, by its row and column on the screen."""
        return self.js(
            """([id, i, j]) => {
                const {sx, sy} = HT.plot.cards.find(c => c.id === id).shown();
                return [sx(j + .5), sy(i + .5)];
            }""",
            [card, row, column],
        )

    # -- what is seen --------------------------------------------------------------------------------------

    def selected(self):
        """The selection as each view that is drawn shows it."""
        return self.js(
            """() => {
                const heads = elements => [...new Set(Array.from(elements)
                    .map(e => Number(e.dataset.head)))].sort((a, b) => a - b);
                const all = selector => document.querySelectorAll(selector);
                const found = {keyboard: heads(all('.stop[aria-pressed=true]'))};
                for (const id of ['grid', 'map', 'tree', 'affinity']) {
                    if (document.querySelector(`#${id}-plot svg`)) found[id] = heads(all(`#${id}-plot .chosen`));
                }
                if (all('tr[data-head]').length) found.table = heads(all('tr.chosen[data-head]'));
                return {...found, text: document.getElementById('selection').textContent};
            }"""
        )

    def shows(self, heads):
        """Whether every view shows exactly these heads as selected."""
        count = f"{len(heads)} head{'s' if len(heads) > 1 else ''} selected" if heads else "No head selected"
        self.settled()
        found = self.selected()
        text = found.pop("text")
        if not text.startswith(count) or found != dict.fromkeys(found, sorted(heads)):
            raise AssertionError(f"{text}: {found}, expected {sorted(heads)}")
        return True

    def barriers(self):
        """What axe-core finds that keeps people from using the page as it is shown now."""
        package = pytest.importorskip(
            "axe_playwright_python", reason="pip install axe-playwright-python brings axe-core"
        )
        self.js((files(package) / "axe.min.js").read_text(encoding="utf-8") + "; 0")
        found = self.js("() => axe.run(document, {resultTypes: ['violations']})")
        return [f"{v['id']}: {v['help']}: {[n['html'][:120] for n in v['nodes'][:3]]}" for v in found["violations"]]

    def without_why(self):
        """Headings of sections that have no "?"."""
        return self.js(
            """() => [...document.querySelectorAll('main h2')]
                .filter(e => !(e.closest('.section-head') ?? e).querySelector('.why')).map(e => e.textContent)"""
        )

    def texts(self, selector):
        """What elements say, with plain spaces where a line must not break."""
        return [text.replace("\xa0", " ") for text in self.tab.locator(selector).all_text_contents()]

    def is_in_view(self, selector):
        """Whether the upper part of an element is within the window."""
        return self.js(
            """selector => { const b = document.querySelector(selector).getBoundingClientRect();
                return b.top >= 0 && b.top < innerHeight - 60 && b.left >= 0 && b.left < innerWidth - 60; }""",
            selector,
        )
