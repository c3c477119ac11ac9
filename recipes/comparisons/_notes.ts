/**
 * What a reader must know to judge NLAC beside the other methods on errands. Printed below every
 * table of them.
 */

/** Of every comparison on errands. */
export const oneWorld =
  "All runs share one world (its hidden orders) and one base model; seeds differ in the random draws of training alone. The intervals and p say nothing of other worlds or bases.";

/** Where other methods stand beside NLAC. */
export const besideTheReward =
  "Beside the reward NLAC reads the desk's answers, which after a mistake name the right action, and every update rehearses 8 labelled texts of made-up errands. RFT, PPO, GRPO and SAC learn from the reward alone; hindsight has the answers' named action, read by a line of code.";

export const cost =
  "Equal environment steps are not equal cost: NLAC writes targets, critiques and refinements for every update. See written tokens, gradient tokens and the curves by tokens.";

/** With dead ends. */
export const lostOver =
  "The end of a lost errand names the thing that lost it. NLAC's backup reads that; the line of code of hindsight does not, and no reading of it by hand was tried.";
