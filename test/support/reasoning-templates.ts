/**
 * Chat templates that treat reasoning as the families of reasoning models do: all drop that of
 * earlier turns. In the form of ChatML, so that any tokenizer with its two control tokens can have
 * them.
 */

const turn = "<|im_start|>{{ message.role }}\n{{ said }}<|im_end|>\n";

/**
 * As QwQ's: the line breaks after the reasoning go too, and the generation prompt opens the
 * reasoning.
 */
export const likeQwq =
  "{% for message in messages %}{% set said = message.content %}" +
  "{% if message.role == 'assistant' and not loop.last %}" +
  "{% set said = said.split('</think>')[-1].lstrip('\n') %}{% endif %}" +
  `${turn}{% endfor %}{% if add_generation_prompt %}<|im_start|>assistant\n<think>\n{% endif %}`;

/**
 * As DeepSeek-R1's distills: what follows the closing tag stays as it is, and the prompt opens the
 * reasoning.
 */
export const likeDeepSeek =
  "{% for message in messages %}{% set said = message.content %}" +
  "{% if message.role == 'assistant' and '</think>' in said %}{% set said = said.split('</think>')[-1] %}{% endif %}" +
  `${turn}{% endfor %}{% if add_generation_prompt %}<|im_start|>assistant\n<think>\n{% endif %}`;
