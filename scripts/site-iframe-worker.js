// A browser starts no worker for a page that is opened as a file: a hidden frame runs the search
// instead.
if (location.protocol === "file:") {
  // The search asks for this name, to load its own parts in the way of a frame.
  window.IFrameWorker = window.Worker = class extends EventTarget {
    constructor(url) {
      super();
      this.frame = document.createElement("iframe");
      this.frame.hidden = true;
      document.body.append(this.frame);
      const inner = this.frame.contentWindow;
      inner.document.open();
      // What the script posts is for the page, and what it imports is loaded before it goes on.
      inner.document.write(
        "<script>postMessage = data => parent.postMessage(data, '*');" +
          "importScripts = (...urls) => urls.reduce((before, url) => before.then(() => new Promise((loaded, failed) => {" +
          "const script = document.createElement('script'); script.src = url; script.onload = loaded;" +
          "script.onerror = failed; document.body.append(script); })), Promise.resolve())</scr" +
          'ipt><script src="' + new URL(url, document.baseURI).href.replace(/"/g, "%22") + '"></scr' + "ipt>");
      inner.document.close();
      this.loaded = new Promise(loaded => inner.addEventListener("load", loaded));
      this.heard = event => {
        if (event.source !== inner) return;
        const message = new MessageEvent("message", { data: event.data });
        this.dispatchEvent(message);
        if (this.onmessage) this.onmessage(message);
      };
      addEventListener("message", this.heard);
    }
    postMessage(data) {
      const inner = this.frame.contentWindow;
      this.loaded.then(() => inner.dispatchEvent(new MessageEvent("message", { data })));
    }
    terminate() {
      removeEventListener("message", this.heard);
      this.frame.remove();
    }
  };
}
