"""The page in a real browser: where things are on the screen, and real clicks on them."""


class Driver:
    """One tab with a page; collects what must not happen."""

    def __init__(self, context, path, fragment=""):
        self.tab = context.new_page()
        self.tab.set_default_timeout(120_000)  # a loaded machine is slow
        self.tab.emulate_media(reduced_motion="reduce")  # a page that still scrolls has nothing in its place
        self.errors, self.requests = [], []
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

    def js(self, expression, *arguments):
        """Look at something; never used to do what a person would do."""
        return self.tab.evaluate(expression, *arguments)

    def wait(self, expression):
        self.tab.wait_for_function(expression)

    def settled(self):
        """Wait until the page says that nothing is under way."""
        self.wait("() => 'settled' in document.documentElement.dataset")

    def drawn(self, card):
        """Scroll to a card and wait until its plot shows what is chosen, in a place where it stays."""
        self.tab.locator(f"section:has(#{card})").scroll_into_view_if_needed()
        self.wait(
            f"""() => HT.plots.cards.some(c => c.id === '{card}' && c.view) &&
                !document.getElementById('{card}').closest('section').hasAttribute('data-due')"""
        )
        self.settled()
        self.tab.locator(f"#{card}-plot").scroll_into_view_if_needed()
        self.js(
            """async id => {
                const {dataset} = document.documentElement, plot = document.getElementById(id);
                let last = "";
                for (let same = 0; same < 3;) {
                    await new Promise(requestAnimationFrame);
                    const now = JSON.stringify(plot.getBoundingClientRect());
                    same = now === last && "settled" in dataset ? same + 1 : 0;
                    last = now;
                }
            }""",
            f"{card}-plot",
        )

    def open_table(self, card):
        """Unfold the table of a plot; it is filled when it opens."""
        self.tab.locator(f"#{card} summary").first.click()
        self.tab.locator(f"#{card} td").first.wait_for(state="visible")

    def place(self, card, x, y):
        """Where a point of a plot is on the screen."""
        self.drawn(card)
        return self.js(
            """([id, x, y]) => {
                const {view} = HT.plots.cards.find(c => c.id === id);
                const box = view.el.getBoundingClientRect();
                return [box.x + view.frame.x_scale.compute(x), box.y + view.frame.y_scale.compute(y)];
            }""",
            [card, x, y],
        )

    def click(self, card, x, y, shift=False):
        place = self.place(card, x, y)
        if shift:
            self.tab.keyboard.down("Shift")
        self.tab.mouse.click(*place)
        if shift:
            self.tab.keyboard.up("Shift")
        self.settled()

    def hover(self, card, x, y):
        """The words under the pointer."""
        place = self.place(card, x, y)
        self.tab.mouse.move(0, 0)
        self.tab.wait_for_selector("#tooltip", state="hidden")
        self.tab.mouse.move(*place)
        self.tab.wait_for_selector("#tooltip", state="visible")
        return self.tab.locator("#tooltip").inner_text()

    def map_click(self, head, shift=False):
        x, y = self.js("head => ['x', 'y'].map(k => HT.network.column(HT.state.get()[k]).values[head])", head)
        self.click("map", x, y, shift)

    def tree_place(self, head):
        return self.js("head => HT.network.tree().place[head]", head)

    def folder_place(self, heads):
        """The middle of a folder of the tree."""
        return self.js(
            """heads => {
                const tree = HT.network.tree();
                const start = Math.min(...heads.map(head => tree.place[head]));
                const f = tree.start.findIndex((s, i) => s === start && tree.size[i] === heads.length);
                const {left, right, top, bottom} = HT.tree.layout(tree, []).folders.find(r => r.f === f);
                return [(left + right) / 2, (top + bottom) / 2];
            }""",
            heads,
        )

    def selected(self):
        """The selection as each view shows it, by what it draws."""
        return self.js(
            """() => {
                const card = id => HT.plots.cards.find(c => c.id === id);
                const sorted = list => [...list].sort((a, b) => a - b);
                const tree = HT.network.tree();
                const marks = card("affinity").marks.data;
                const n = marks.left.length / 2;
                const bars = card("tree").marks.data;
                const heads = [];
                for (let i = 0; i < tree.order.length; i++) {
                    const isUnder = bars.left.some((l, j) => l <= i + 0.5 && i + 0.5 < bars.right[j]);
                    if (isUnder) heads.push(tree.order[i]);
                }
                return {
                    map: sorted(card("map").source.selected.indices),
                    grid: sorted(card("grid").source.selected.indices),
                    affinity: sorted(marks.left.slice(0, n).map(p => tree.order[p])),
                    tree: sorted(heads),
                    table: sorted(Array.from(document.querySelectorAll("tr.chosen"), r => Number(r.dataset.head))),
                    text: document.getElementById("selection").textContent,
                };
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
