// Requests to the server that served the page, with the key where it wants one. The key lives in this tab alone.

import { fill, h } from "./dom.js";

const KEY = "octavo-api-key";
let asking = null;

let told = null;

/** What the server says of itself and of the parts that it serves; asked for once. */
export function config() {
  told ??= fetch("page/config.json", { cache: "no-store" }).then((answer) => {
    if (!answer.ok) throw new Error(`it says ${answer.status}`);
    return answer.json();
  });
  return told;
}

function key() {
  return sessionStorage.getItem(KEY);
}

/** `fetch` with the key; asks for it, as often as it takes, where the server says 401. */
export async function request(path, options = {}) {
  for (;;) {
    const headers = new Headers(options.headers);
    const sent = key();
    if (sent) headers.set("authorization", `Bearer ${sent}`);
    const answer = await fetch(path, { ...options, headers });
    if (answer.status !== 401) return answer;
    await answer.body?.cancel();
    asking ??= askForKey(sent !== null).finally(() => (asking = null));
    await asking;
  }
}

/** The same with a JSON body. */
export function post(path, body, options = {}) {
  const headers = { "content-type": "application/json" };
  return request(path, { method: "POST", headers, body: JSON.stringify(body), ...options });
}

function askForKey(wrong) {
  return new Promise((resolve) => {
    const field = h("input", { type: "password", id: "api-key", autocomplete: "off", required: true });
    const dialog = h(
      "dialog",
      { "aria-labelledby": "api-key-title" },
      h(
        "form",
        { method: "dialog" },
        h("h2", { id: "api-key-title" }, "This server asks for a key"),
        h("p", {}, wrong ? "That key was not accepted." : "It was started with --api-key; the key stays in this tab."),
        h("label", { for: "api-key" }, "API key"),
        field,
        h("button", { type: "submit" }, "Use it"),
      ),
    );
    dialog.addEventListener("close", () => {
      sessionStorage.setItem(KEY, field.value);
      fill(dialog);
      dialog.remove();
      resolve();
    });
    dialog.addEventListener("cancel", (event) => event.preventDefault());
    document.body.append(dialog);
    dialog.showModal();
  });
}

/** The data of server-sent events in a response, as they come. Ends when the connection does. */
export async function* eventData(response) {
  const reader = response.body.pipeThrough(new TextDecoderStream()).getReader();
  let parts = [];
  try {
    for (;;) {
      const { done, value } = await reader.read();
      if (done) return;
      // Pieces are joined only when an event has ended: a snapshot of a large pool comes in many.
      const end = value.lastIndexOf("\n\n");
      if (end < 0 && !(value.startsWith("\n") && parts.at(-1)?.endsWith("\n"))) {
        parts.push(value);
        continue;
      }
      const text = parts.join("") + value;
      const last = text.lastIndexOf("\n\n");
      parts = [text.slice(last + 2)];
      for (const event of text.slice(0, last).split("\n\n")) {
        const lines = event.split("\n").filter((line) => line.startsWith("data:"));
        if (lines.length) yield lines.map((line) => line.slice(5).trimStart()).join("\n");
      }
    }
  } finally {
    reader.cancel().catch(() => {});
  }
}
