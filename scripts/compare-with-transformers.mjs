#!/usr/bin/env node
// Compares a model of any size with transformers, in float32 on the CPU:
//   node scripts/compare-with-transformers.mjs <Hugging Face directory or .gguf file> [text file]
// Prints the largest difference of the logits of the text's first 300 tokens, how often the most likely
// token is the same, and whether transformers reads the same logits and ids from nlac's export.
// Needs `scripts/peers.sh`.
import { spawnSync } from "node:child_process";
import { mkdtempSync, readFileSync, rmSync, writeFileSync } from "node:fs";
import { tmpdir } from "node:os";
import { basename, dirname, join, resolve } from "node:path";
import { importLib } from "./build-native.mjs";

const program = `
import json, sys
import numpy as np, torch
from transformers import AutoModelForCausalLM, AutoTokenizer
given = json.load(sys.stdin)
ids = given["ids"]
def logits(*where, **how):
    model = AutoModelForCausalLM.from_pretrained(*where, dtype=torch.float32, **how)
    with torch.no_grad():
        return type(model).__name__, model(torch.tensor([ids])).logits[0].numpy()
name, expected = logits(given["directory"], **({"gguf_file": given["file"]} if given["file"] else {}))
found = np.fromfile(given["logits"], dtype=np.float32).reshape(expected.shape)
_, exported = logits(given["export"])
tokenizer = AutoTokenizer.from_pretrained(given["export"])
encoded = tokenizer(given["text"], add_special_tokens=False)["input_ids"][: len(given["plain"])]
json.dump({
    "model": name,
    "parameters": given["parameters"],
    "tokens": len(ids),
    "largest logit": float(np.abs(expected).max()),
    "largest difference": float(np.abs(found - expected).max()),
    "same most likely token": float((found.argmax(1) == expected.argmax(1)).mean()),
    "largest difference of the export": float(np.abs(exported - expected).max()),
    "same ids by the export": encoded == given["plain"],
}, sys.stdout)
`;

async function main([model, textFile = join(import.meta.dirname, "..", "README.md")]) {
  if (model === undefined) {
    console.error("usage: node scripts/compare-with-transformers.mjs <directory or .gguf file> [text file]");
    process.exitCode = 2;
    return;
  }
  const { Learner } = await importLib("learner/learner");
  const { cacheRoot } = await importLib("native/paths");
  const python = join(cacheRoot(), "peers", "bin", "python");
  const work = mkdtempSync(join(tmpdir(), "nlac-compare-"));
  const learner = await Learner.load(model, { device: "cpu", dtype: "float32" });
  try {
    const { tokenizer } = learner;
    const text = readFileSync(textFile, "utf8").slice(0, 5000);
    const bos = tokenizer.idOf(tokenizer.namedTokens.bos_token ?? "");
    const plain = tokenizer.encode(text).slice(0, 299);
    const ids = bos === undefined ? plain : [bos, ...plain];
    const [logits] = await learner.logits([ids]);
    writeFileSync(join(work, "logits"), logits);
    await learner.exportHuggingFace(join(work, "export"));
    const isFile = model.endsWith(".gguf");
    const input = {
      ...{ ids, plain, text, logits: join(work, "logits"), export: join(work, "export") },
      directory: isFile ? dirname(resolve(model)) : resolve(model),
      file: isFile ? basename(model) : null,
      parameters: learner.info.parameters,
    };
    const { stdout, stderr, status } = spawnSync(python, ["-c", program], {
      ...{ input: JSON.stringify(input), encoding: "utf8" },
      env: { ...process.env, HF_HUB_OFFLINE: "1" },
    });
    if (status !== 0) throw new Error(stderr ?? `${python} cannot be started: run scripts/peers.sh`);
    console.table(JSON.parse(stdout));
  } finally {
    await learner.dispose();
    rmSync(work, { recursive: true, force: true });
  }
}

await main(process.argv.slice(2));
