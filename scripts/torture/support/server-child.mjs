// A server in its own process, on a learner of random weights: node server-child.mjs RECORDING.
// Sends { url } when it listens. Answers each message with how long the event loop was held up since
// the message before (LoopMeter.take), and the process's memory in MB.
import { Learner } from "../../../dist/index.js";
import { Tokenizer } from "../../../dist/models.js";
import { serve } from "../../../dist/serving.js";
import { LoopMeter } from "./loop-meter.mjs";

const config = {
  ...{ architectures: ["LlamaForCausalLM"], model_type: "llama", vocab_size: 1088, hidden_size: 32 },
  ...{ intermediate_size: 64, num_hidden_layers: 1, num_attention_heads: 2, num_key_value_heads: 1 },
  ...{ max_position_embeddings: 65536, rms_norm_eps: 1e-5, rope_theta: 10000, hidden_act: "silu" },
  ...{ tie_word_embeddings: true, eos_token_id: 1081 },
};

// A template like Qwen's, with tools.
const chatTemplate = `{%- if tools %}<|im_start|>system
{% for tool in tools %}{{ tool | tojson }}
{% endfor %}<|im_end|>
{% endif %}{%- for message in messages %}<|im_start|>{{ message.role }}
{{ message.content }}{%- if message.tool_calls %}{%- for call in message.tool_calls %}
<tool_call>
{"name": "{{ call.function.name }}", "arguments": {{ call.function.arguments | tojson }}}
</tool_call>{%- endfor %}{%- endif %}<|im_end|>
{% endfor %}{%- if add_generation_prompt %}<|im_start|>assistant
{% endif %}`;

/** Bytes, pairs of letters, and runs of spaces and of "a" up to 64, so that words have merges. */
function tokenizer() {
  const vocab = {};
  const merges = [];
  let extra = 256;
  for (let byte = 0; byte < 256; byte++) {
    const printable = (byte >= 33 && byte <= 126) || (byte >= 161 && byte <= 172) || byte >= 174;
    vocab[String.fromCodePoint(printable ? byte : extra++)] = byte;
  }
  const merge = (left, right) => {
    if (vocab[left + right] !== undefined) return;
    vocab[left + right] = Object.keys(vocab).length;
    merges.push([left, right]);
  };
  for (const run of ["a", "\u0120"])
    for (let length = 1; length < 64; length *= 2) merge(run.repeat(length), run.repeat(length));
  const letters = [..."abcdefghijklmnopqrstuvwxyz\u0120<|"];
  for (const left of letters) for (const right of letters) if (merges.length < 824) merge(left, right);
  const added = ["<|im_start|>", "<|im_end|>"].map((content, i) => ({
    ...{ id: 1080 + i, content, special: true, normalized: false, lstrip: false, rstrip: false },
    single_word: false,
  }));
  const level = { type: "ByteLevel", add_prefix_space: false, trim_offsets: true, use_regex: true };
  const model = { type: "BPE", vocab, merges };
  const json = { version: "1.0", added_tokens: added, normalizer: { type: "NFC" }, pre_tokenizer: level };
  return new Tokenizer({
    json: { ...json, post_processor: null, decoder: level, model },
    config: { eos_token: "<|im_end|>" },
    chatTemplate,
  });
}

const learner = await Learner.create(config, { dtype: "float32", tokenizer: tokenizer() });
const server = await serve({ learner, name: "m", port: 0, record: process.argv[2] });
const meter = new LoopMeter();
process.on("message", () => {
  const { rss, heapUsed } = process.memoryUsage();
  process.send({ ...meter.take(), rss: rss / 2 ** 20, heap: heapUsed / 2 ** 20 });
});
process.on("disconnect", () => process.exit());
process.send({ url: server.url });
