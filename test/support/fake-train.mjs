// Stands for `nlac train` in tests of what starts it: node fake-train.mjs MODE… train … --run DIR
// --json. What it does is said by the file MODE/METHOD-SEED, or else MODE/any: finish, crash, kill,
// hang (until it is told to stop), mute.
import { appendFileSync, existsSync, mkdirSync, readFileSync, writeFileSync } from "node:fs";
import { basename, dirname, join } from "node:path";

const [, , modes, ...argv] = process.argv;
const directory = argv[argv.indexOf("--run") + 1];
const method = basename(dirname(directory));
const named = join(modes, `${method}-${basename(directory)}`);
const mode = readFileSync(existsSync(named) ? named : join(modes, "any"), "utf8").trim();
const say = (what) =>
  appendFileSync(
    join(modes, "calls"),
    `${JSON.stringify({ what, argv, threads: process.env.OMP_NUM_THREADS })}\n`,
  );

say("begin");
process.stdout.write("what a recipe may print\n");
process.stderr.write("working …\n");
mkdirSync(directory, { recursive: true });
const checkpoint = () => writeFileSync(join(directory, "latest"), "000000");
const end = (result, code = 0) => {
  say("end");
  process.stdout.write(`${JSON.stringify({ run: directory, ...result })}\n`);
  process.exitCode = code;
};
process.on("SIGTERM", () => {
  checkpoint();
  clearTimeout(hanging);
  end({ stopped: true });
});
let hanging;
if (mode === "finish") setTimeout(() => end({ stopped: false }), 100);
else if (mode === "mute") say("end");
else if (mode === "crash") {
  say("end");
  process.stderr.write("nlac: ERR_NOT_FINITE: ten steps in a row\n");
  process.exitCode = 1;
} else if (mode === "kill") process.kill(process.pid, "SIGKILL");
else if (mode === "hang") {
  writeFileSync(join(modes, "hanging"), "");
  hanging = setTimeout(() => {}, 60_000);
} else throw new Error(`There is no mode ${mode}.`);
