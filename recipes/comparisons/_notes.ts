/**
 * Notes that a reader needs to judge NLAC against the other methods on Errands. Printed below every
 * table.
 */

/** For every comparison on Errands. */
export const oneWorld =
  "All runs share one world (its hidden orders) and one base model; seeds differ in the random draws of training only. NLAC's settings were tuned on this world. The intervals and p do not apply to other worlds or base models.";

/** For comparisons of NLAC with other methods. */
export const besideTheReward =
  "Beyond the reward, NLAC reads the desk's replies, which name the right action after a mistake, and every update rehearses 8 labelled samples of synthetic errands. Monte-Carlo values and the critiques of Critique-GRPO read the same replies. RFT, PPO, GRPO, SAC and ArCHer learn from the reward alone; hindsight imitates the action that the replies name, read by a line of code.";

/** For comparisons with HOPE. */
export const knowsTheOrder =
  "Code that knows the hidden order writes the proposals of HOPE and of leap. In the paper, GPT-4o reads the secret and writes them. No other method is told the order; it sees its own episodes, and NLAC the labelled samples of synthetic errands.";

/** For comparisons with PPO, ArCHer or SAC. */
export const sharedHeads =
  "The values of PPO, ArCHer and SAC come from heads on the policy's network; in their papers the critic is a network of its own. Here ArCHer and SAC lose success even where the base model succeeds often (docs/experiments.md): their rows are results of these implementations.";

export const cost =
  "Equal environment steps are not equal cost: NLAC generates targets, critiques and refinements for every update. See generated tokens, gradient tokens and the curves by tokens.";

/** For worlds with dead ends. */
export const lostOver =
  "The end of a lost errand names the item that lost it. NLAC's backup reads that; the line of code of hindsight does not. Code that does ends above NLAC in the comparison causal-controls.";
