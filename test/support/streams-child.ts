// Writes notes to standard error and one long text to standard output, as the program does.
import { watchStandardStreams } from "../../lib/cli/standard-streams.ts";

watchStandardStreams();
process.stderr.write("a note\n");
setTimeout(() => {
  process.stderr.write("another note\n");
  console.log("x".repeat(Number(process.argv[2])));
}, 20);
