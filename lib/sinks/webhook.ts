/** Posts a run's end, or its collapse, to an address, as JSON with a `text` that chats display. */

import { headersFrom, httpAddress, postJson } from "./http.ts";
import type { ReportedRun, RunEvent, Sink } from "./sink.ts";

export function webhookSink(options: {
  url: string;
  on: readonly RunEvent["kind"][];
  headers: Readonly<Record<string, string>>;
}): Sink {
  const address = httpAddress(options.url, "report.url");
  const headers = headersFrom(options.headers, "report.headers");
  let run: ReportedRun | undefined;
  return {
    name: "webhook",
    start(started) {
      run = started;
    },
    async event({ kind, time, message }, signal) {
      if (!options.on.includes(kind)) return;
      const { id, name, directory } = run!;
      const text = `${name} ${kind}: ${message}`;
      const body = { text, event: kind, message, time, run: { id, name, directory } };
      await postJson(address, body, { headers, signal });
    },
  };
}
