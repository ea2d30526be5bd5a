/* Bokeh figures in cards: one way to make them, to colour them by theme, to hover, and to take them home. */
HT.plots = (() => {
  const {el, hint} = HT.dom;
  const cards = [];
  let queue = Promise.resolve();
  const NEVER = 2 ** 31 - 1;  // milliseconds: the longest that a timer can wait
  // To Bokeh a button held for 0.3 s is a press, after which no drag can begin; nothing here is done by pressing.
  Bokeh.require("core/ui_gestures").UIGestures.press_threshold = NEVER;
  const FONT = "system-ui, -apple-system, 'Segoe UI', Roboto, 'Helvetica Neue', sans-serif";
  const NARROW = 600;  // pixels
  const DRAG = 5;  // pixels between press and release from which Bokeh takes them for a drag

  function colour(name) {
    return getComputedStyle(document.documentElement).getPropertyValue(`--${name}`).trim();
  }

  const isNarrow = () => innerWidth < NARROW;

  /** A figure in the page's colours; `options` are Bokeh's. */
  function figure(options, backend = "canvas") {
    const narrow = isNarrow();
    const fig = Bokeh.Plotting.figure({
      sizing_mode: "stretch_width", tools: "", output_backend: backend, min_border: 4,
      active_drag: null, active_scroll: null, toolbar_location: narrow ? "below" : "right", ...options,
    });
    fig.toolbar.logo = null;
    fig.toolbar.autohide = false;
    if (!options.tools) fig.toolbar_location = null;
    restyle(fig);
    return fig;
  }

  function restyle(fig) {
    const text = colour("text"), soft = colour("soft"), line = colour("line"), panel = colour("panel");
    fig.background_fill_color = panel;
    fig.border_fill_color = panel;
    fig.outline_line_color = line;
    for (const axis of fig.axes) {
      axis.axis_label_text_color = text;
      axis.axis_label_text_font = axis.major_label_text_font = FONT;
      axis.axis_label_text_font_style = "normal";
      axis.axis_label_text_font_size = "13px";
      axis.major_label_text_font_size = "12px";
      axis.major_label_text_color = soft;
      axis.axis_line_color = axis.major_tick_line_color = line;
      axis.minor_tick_line_color = null;
    }
    for (const grid of fig.grids) grid.grid_line_color = colour("faint");
  }

  /** Few round numbers for an axis of logarithms: 1, 2, 5, 10, …, or 1, 10, 100, … if those were many. */
  function logTicks(low, high) {
    const decades = Array.from({length: Math.ceil(Math.log10(high)) + 1}, (_, i) => 10 ** i);
    const fine = decades.flatMap(n => [n, 2 * n, 5 * n]).filter(n => n >= low && n <= high);
    return fine.length > (isNarrow() ? 4 : 7) ? decades.filter(n => n >= low && n <= high) : fine;
  }

  /** A scale beside a figure. */
  function bar(fig, palette, low, high) {
    if (isNarrow()) return;
    fig.add_layout(new Bokeh.ColorBar({
      color_mapper: new Bokeh.LinearColorMapper({palette, low, high: high > low ? high : low + 1}), width: 10,
      padding: 4, bar_line_color: null, major_tick_line_color: null,
      major_label_text_font: FONT, major_label_text_color: colour("soft"), background_fill_color: colour("panel"),
    }), "right");
  }

  /**
   * When a view has been painted and its axes have found their widths: each paint may ask for another. Bokeh forgets
   * to keep its promise of a paint that it replaces by another, which is why there is an end to waiting for one.
   */
  async function still(view) {
    const patience = () => new Promise(resolve => setTimeout(resolve, 500));
    let last = null;
    while (last !== view.ready) {
      last = view.ready;
      await Promise.race([last, patience()]);
      await new Promise(requestAnimationFrame);
    }
  }

  /** What a plot shows at the place of an event, in the plot's own numbers; null outside its frame. */
  function placeOf(event, view) {
    if (!view) return null;
    const box = view.canvas_view.el.getBoundingClientRect();
    const [sx, sy] = [event.clientX - box.x, event.clientY - box.y];
    if (!view.frame.bbox.contains(sx, sy)) return null;
    return [view.frame.x_scale.invert(sx), view.frame.y_scale.invert(sy)];
  }

  /**
   * Say what is under the pointer, and take clicks. The browser's own events are listened to, not Bokeh's gestures:
   * for these, a second click within 0.3 s, wherever it is, is a double tap and no tap, so that it would be lost.
   */
  function listen(self, over, tapped) {
    let down = null;
    const show = event => {
      const place = placeOf(event, self.view);
      hint(event, place && over ? over(...place) : null);
      return place;
    };
    self.target.addEventListener("pointerdown", event => { down = event; }, true);
    self.target.addEventListener("pointermove", event => { if (!event.buttons) show(event); }, true);
    self.target.addEventListener("pointerleave", () => hint(null, null));
    self.target.addEventListener("click", event => {
      const isDrag = down && Math.hypot(event.clientX - down.clientX, event.clientY - down.clientY) > DRAG;
      const place = isDrag ? null : show(event);
      if (place && tapped) tapped(...place, event.shiftKey);
    }, true);
  }

  /**
   * A card with a heading, a sentence, controls, a plot and its downloads.
   * `draw(backend)` returns a figure or null; it is called again for another theme or file format.
   * `tables` are folds (HT.dom.lazily) with what the plot shows, filled again whenever it is drawn.
   * `over(x, y)` returns what to say about a place, `tapped(x, y, add)` is called on a click.
   */
  function card({id, title, sentence, controls = [], draw, over, tapped, after = [], tables = [], level = "h3"}) {
    const target = el("div", {class: "plot", id: `${id}-plot`, role: "img", "aria-label": title});
    const buttons = ["SVG", "PNG"].map(format => el("button", {
      type: "button", class: "download", "aria-label": `Download ${title} as ${format}`,
      onclick: () => HT.download.plot(self, format.toLowerCase()),
    }, format));
    const self = {id, title, draw, figure: null, view: null, target};
    const heading = el(level, {id: `${id}-title`}, title);
    self.heading = heading;
    self.sentence = el("p", {class: "sentence"}, sentence);
    self.element = el("article", {class: "card", id, "aria-labelledby": `${id}-title`},
      el("div", {class: "card-head"}, heading, el("div", {class: "downloads"}, ...buttons)),
      self.sentence, ...(controls.length ? [el("div", {class: "controls"}, ...controls)] : []), target, ...after,
      ...tables.map(table => table.element));
    listen(self, over, tapped);

    async function drawNow() {
      self.isWaiting = false;
      const fig = draw("canvas");
      target.hidden = fig === null;
      for (const button of buttons) button.hidden = fig === null;
      const old = self.view;
      self.figure = fig;
      self.view = null;
      if (fig) {
        target.style.minHeight = `${fig.height}px`;
        const host = el("div");
        const view = await Bokeh.Plotting.show(fig, host);
        target.replaceChildren(host);
        view.invalidate_layout?.();
        self.view = view;
      } else {
        target.replaceChildren();
      }
      old?.model.document?.clear();
      old?.remove();
      for (const table of tables) table.refresh();
    }

    /** Draw anew, in what is chosen then: one card after the other, the first on the page first. */
    self.redraw = () => {
      if (!self.isWaiting) {
        self.isWaiting = true;
        queue = queue.then(drawNow).catch(error => { setTimeout(() => { throw error; }); });
        HT.track(queue.then(() => self.view && still(self.view)));
      }
      return queue;
    };
    cards.push(self);
    return self;
  }

  /** Draw every card that is there again, in the colours of the theme. */
  const redrawAll = () => Promise.all(cards.filter(item => item.figure && item.element.isConnected)
    .map(item => item.redraw()));

  return {cards, card, figure, bar, colour, redrawAll, isNarrow, logTicks, still, FONT};
})();
