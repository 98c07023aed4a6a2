// The feed of frames, for as long as the page lives: it connects, reads, and connects again.

import { eventData, request } from "./server.js";

const WAIT_MS = [300, 600, 1200, 2500];

/**
 * `onFrame(frame, size)` gets every frame and answers false to be given a snapshot instead; `onState(word)`: connected,
 * lost or connecting. Returns a function that ends it.
 */
export function connect(path, { onFrame, onState }) {
  const control = new AbortController();
  let failures = 0;

  async function once() {
    onState("connecting");
    const response = await request(path, { signal: control.signal, headers: { accept: "text/event-stream" } });
    if (!response.ok) throw new Error(`the server says ${response.status}`);
    onState("connected");
    for await (const data of eventData(response)) {
      failures = 0;
      if (onFrame(JSON.parse(data), data.length) === false) return;
    }
    onState("lost");
  }

  (async () => {
    while (!control.signal.aborted) {
      try {
        await once();
      } catch (error) {
        if (control.signal.aborted) return;
        onState("lost", error);
      }
      await new Promise((resolve) => setTimeout(resolve, WAIT_MS[Math.min(failures++, WAIT_MS.length - 1)]));
    }
  })();
  return () => control.abort();
}
