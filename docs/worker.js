// A page that was opened from the disk may not start a worker, and search needs one. So its script runs in a hidden frame
// there. Pages that come from a server use the browser's own. What a worker is sent is a copy, and so it is here: both
// sides change what they were given.
if (location.protocol === "file:") {
  window.Worker = class {
    constructor(url) {
      this.onmessage = null;
      this.onerror = null;
      this.waiting = [];
      this.frame = document.createElement("iframe");
      this.frame.hidden = true;
      document.body.append(this.frame);
      const inside = this.frame.contentWindow;
      inside.postMessage = (message) => {
        const data = structuredClone(message);
        setTimeout(() => this.onmessage && this.onmessage({ data }));
      };
      const script = inside.document.createElement("script");
      script.src = new URL(url, location.href).href;
      script.onload = () => {
        const sent = this.waiting;
        this.waiting = null;
        sent.forEach((data) => this.hand(data));
      };
      script.onerror = (error) => this.onerror && this.onerror(error);
      inside.document.body.append(script);
    }

    postMessage(message) {
      const data = structuredClone(message);
      if (this.waiting) this.waiting.push(data);
      else this.hand(data);
    }

    hand(data) {
      setTimeout(() => this.frame.contentWindow && this.frame.contentWindow.onmessage({ data }));
    }

    terminate() {
      this.frame.remove();
    }
  };
}
