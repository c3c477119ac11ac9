/** Parts of a form that more than one request shows. */

export const optimalityForm = [
  "Optimality:",
  '<"Yes" or "No". After a "No", one sentence on how to improve the action, argued from that future.>',
].join("\n");

export const actionFreeNotes = [
  "Notes:",
  "1. Tools cannot be called here; a call would have **no effect**.",
  '2. For the best possible action write just "Yes" after "Optimality:", without a reason.',
  "3. Stop after the judgement.",
].join("\n");
