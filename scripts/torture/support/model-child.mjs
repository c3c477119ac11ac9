// Opens the model directories that its parent names, one after the other, and uses the models.
import { Learner } from "../../../dist/index.js";
import { ChatTemplate } from "../../../dist/tokens/template.js";
import { Tokenizer } from "../../../dist/tokens/tokenizer.js";

const texts = ["hello", `${"a".repeat(40)}b`, "<|im_end|>", "a".repeat(100_000), ""];

async function attempt(outcomes, name, work) {
  process.send({ phase: name });
  try {
    const value = await work();
    outcomes[name] = "ok";
    return value;
  } catch (error) {
    outcomes[name] = typeof error?.code === "string" ? error.code : `uncoded ${error?.stack ?? error}`;
    return undefined;
  }
}

process.on("message", async ({ path }) => {
  const outcomes = {};
  if (!path.endsWith(".gguf")) {
    const tokenizer = await attempt(outcomes, "tokenizer", () => Tokenizer.fromDirectory(path));
    if (tokenizer !== undefined) {
      await attempt(outcomes, "encode", () => texts.map((text) => tokenizer.encode(text)));
      await attempt(outcomes, "bytes", () => tokenizer.tokenBytes());
      const chat = await attempt(outcomes, "template", () => ChatTemplate.of(tokenizer));
      const messages = [{ role: "user", content: "hello" }];
      await attempt(outcomes, "render", () =>
        chat?.encode(tokenizer, messages, { addGenerationPrompt: true }),
      );
    }
  }
  const learner = await attempt(outcomes, "load", () => Learner.load(path, { device: "cpu", threads: 1 }));
  if (learner !== undefined) {
    await attempt(outcomes, "generate", () => learner.generate([{ tokens: [1, 2], maxNewTokens: 2 }]));
    await learner.dispose();
  }
  process.send({ outcomes, rss: process.resourceUsage().maxRSS * 1024 });
});
process.send({ ready: true });
