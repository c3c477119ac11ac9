/** Work that Ctrl-C stops: it reports its signal, and then never ends. */

import { stoppable } from "../../lib/cli/stop.ts";

setInterval(() => {}, 1000);
await stoppable(console.log, "later", (signal) => {
  signal.addEventListener("abort", () => console.log("aborted"));
  console.log("ready");
  return new Promise(() => {});
});
