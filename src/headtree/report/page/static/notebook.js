(() => {
  /* In a notebook: tell the frames of pages whether what surrounds them is dark. */
  const isDark = frame => {
    for (let element = frame; element; element = element.parentElement) {
      const [r, g, b, a = 1] = getComputedStyle(element).backgroundColor.match(/[\d.]+/g).map(Number);
      if (a > 0) return 0.3 * r + 0.6 * g + 0.1 * b < 128;
    }
    return false;
  };
  const tell = () => {
    for (const frame of document.querySelectorAll("iframe.headtree-page")) {
      frame.contentWindow?.postMessage({headtreeTheme: isDark(frame) ? "dark" : "light"}, "*");
    }
  };
  addEventListener("message", event => { if (event.data?.headtreeReady) tell(); });
  for (const element of [document.documentElement, document.body]) new MutationObserver(tell).observe(element, {attributes: true});
  tell();
})();
