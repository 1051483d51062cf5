// Search on pages that are opened from a disk, where browsers start no worker: a frame runs the worker's script instead.
if (location.protocol === "file:") {
    window.IFrameWorker = window.Worker = class extends EventTarget {
        constructor(url) {
            super();
            this.waiting = [];
            this.frame = document.createElement("iframe");
            this.frame.hidden = true;
            document.body.append(this.frame);
            const scope = this.frame.contentWindow;
            const answer = (data) => setTimeout(() => this.dispatchEvent(new MessageEvent("message", { data })));
            scope.postMessage = answer;
            const script = scope.document.createElement("script");
            script.src = url;
            script.onload = () => {
                const waiting = this.waiting;
                this.waiting = null;
                waiting.forEach((data) => this.postMessage(data));
            };
            scope.document.body.append(script);
        }

        postMessage(data) {
            if (this.waiting) this.waiting.push(data);
            else this.frame.contentWindow.dispatchEvent(new MessageEvent("message", { data }));
        }

        terminate() {
            this.frame.remove();
        }
    };
}
