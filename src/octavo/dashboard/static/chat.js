// A chat with the served model, so that one sees one's own blocks. What anyone writes is text, never markup.

import { count, fill, h, plural } from "./dom.js";
import { eventData, post } from "./server.js";

/**
 * `model`: its name. `onRequest(id)`: a question was taken, under this request id; `onEnd(id)`: it was answered.
 */
export function chatView({ model, onRequest, onEnd }) {
  const turns = [];
  /** Finished turns: [{role, content}]. */
  const list = h("ol", {});
  const frame = h("div", { class: "chat", role: "log", "aria-label": "Conversation", tabindex: "0" }, list);
  const field = h("textarea", { id: "chat-text", rows: "2", placeholder: "Ask the model something" });
  const length = h("input", { type: "number", id: "chat-length", min: "1", max: "2000", value: "120" });
  const send = h("button", { type: "submit", class: "primary" }, "Send");
  const stop = h("button", { type: "button", disabled: true, onclick: () => running.forEach((one) => one.abort()) }, "Stop");
  const clear = h("button", { type: "button", onclick: startOver }, "New conversation");
  const running = new Set();

  function startOver() {
    running.forEach((one) => one.abort());
    turns.length = 0;
    fill(list);
  }

  function bubble(role, text) {
    const words = h("div", { class: "words" }, text);
    const foot = h("div", { class: "hint foot" });
    const item = h("li", { class: role }, h("span", { class: "who" }, role === "user" ? "You" : "Model"), words, foot);
    list.append(item);
    frame.scrollTop = frame.scrollHeight;
    return { item, words, foot };
  }

  async function ask(question) {
    const control = new AbortController();
    running.add(control);
    stop.disabled = false;
    bubble("user", question);
    const answer = bubble("assistant", "");
    answer.item.setAttribute("aria-busy", "true"); // read out when it is whole
    const messages = [...turns, { role: "user", content: question }];
    let text = "", id = null, usage = null, reason = null;
    try {
      const body = { model, messages, stream: true, max_tokens: Number(length.value) || 120, stream_options: { include_usage: true } };
      const response = await post("v1/chat/completions", body, { signal: control.signal });
      if (!response.ok) throw new Error((await response.json()).error?.message ?? `the server says ${response.status}`);
      for await (const data of eventData(response)) {
        if (data === "[DONE]") break;
        const chunk = JSON.parse(data);
        if (chunk.error) throw new Error(chunk.error.message);
        if (id === null) {
          id = chunk.id;
          onRequest(id);
        }
        usage = chunk.usage ?? usage;
        const choice = chunk.choices?.[0];
        reason = choice?.finish_reason ?? reason;
        if (choice?.delta?.content) {
          text += choice.delta.content;
          answer.words.textContent = text;
          frame.scrollTop = frame.scrollHeight;
        }
      }
      turns.push({ role: "user", content: question }, { role: "assistant", content: text });
      answer.foot.textContent = account(usage, reason);
      frame.scrollTop = frame.scrollHeight;
    } catch (error) {
      answer.foot.textContent = control.signal.aborted ? "stopped" : `failed: ${error.message}`;
    } finally {
      running.delete(control);
      answer.item.setAttribute("aria-busy", "false");
      stop.disabled = running.size === 0;
      if (id !== null) onEnd(id);
    }
  }

  const form = h(
    "form",
    {
      class: "chat-form",
      onsubmit: (event) => {
        event.preventDefault();
        const question = field.value.trim();
        if (!question) return;
        field.value = "";
        ask(question);
      },
    },
    h("label", { for: "chat-text" }, "Your question ", h("span", { class: "hint" }, "(Enter sends it)")),
    field,
    h("div", { class: "buttons" }, send, stop, clear),
    h("label", { for: "chat-length", class: "inline" }, "Longest answer, in tokens ", length),
  );
  field.addEventListener("keydown", (event) => {
    if (event.key === "Enter" && !event.shiftKey && !event.isComposing) {
      event.preventDefault();
      form.requestSubmit();
    }
  });
  return {
    element: h(
      "section",
      { class: "card chat-card", "aria-labelledby": "chat-title" },
      h("h2", { id: "chat-title" }, "Talk to the model"),
      h(
        "p",
        { class: "hint" },
        "Your blocks light up in the map. Ask again, and the conversation so far is found in the pool; ask while an answer is still coming, and both share its blocks.",
      ),
      frame,
      form,
    ),
  };
}

function account(usage, reason) {
  if (!usage) return reason ?? "";
  const cached = usage.prompt_tokens_details?.cached_tokens ?? 0;
  const found = cached ? `${count(cached)} of them found in the pool` : "none of them found in the pool";
  const end = reason === "length" ? "; cut at the longest answer" : "";
  return `${plural(usage.prompt_tokens, "token")} of prompt, ${found}; ${plural(usage.completion_tokens, "token")} of answer${end}`;
}
