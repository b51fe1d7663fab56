// Browsers start no worker from a page that was opened as a file. The search of the site runs in one:
// this puts a hidden frame in its place, which has the same messages.
if (location.protocol === "file:") {
  window.Worker = class extends EventTarget {
    constructor(url) {
      super()
      const frame = document.createElement("iframe")
      frame.hidden = true
      document.body.append(frame)
      this.waiting = []
      window.addEventListener("message", event => {
        if (event.source !== frame.contentWindow) return
        this.dispatchEvent(new MessageEvent("message", { data: event.data }))
        if (this.onmessage) this.onmessage(event)
      })
      const page = frame.contentDocument
      page.open()
      page.write(`<script>
        postMessage = data => parent.postMessage(data, "*")
        importScripts = (...urls) => Promise.all(urls.map(url => new Promise((done, failed) => {
          const script = document.createElement("script")
          script.src = url
          script.onload = done
          script.onerror = failed
          document.body.append(script)
        })))
      <\/script><body><script src="${url}"><\/script>`)
      page.close()
      this.frame = frame
      frame.contentWindow.addEventListener("load", () => {
        this.ready = true
        for (const data of this.waiting.splice(0)) this.postMessage(data)
      })
    }

    postMessage(data) {
      if (!this.ready) this.waiting.push(data)
      else this.frame.contentWindow.dispatchEvent(new MessageEvent("message", { data }))
    }

    terminate() {
      this.frame.remove()
    }
  }
}
