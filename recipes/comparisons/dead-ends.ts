/**
 * What the bootstrap is for: errands in which nine other things are taken by mistake before the
 * last step, all goes on as if nothing had happened, and the last thing is refused. NLAC with d' as
 * the paper's equation 1 has it, as its prompts ask for it, and without; and imitation of what the
 * desk's answers say, which also clones things that were taken by mistake.
 */
import { defineComparison } from "nlac";
import { besideTheReward, cost, lostOver, oneWorld } from "./_notes.ts";

export default defineComparison({
  name: "dead-ends",
  description:
    "bootstrapped futures on errands with dead ends: five seeds each, half a million parameters, on the CPU",
  notes: [besideTheReward, lostOver, cost, oneWorld],
  environmentSteps: 2000,
  seeds: [0, 1, 2, 3, 4],
  set: {
    environment: { options: { deadEnds: 9 } },
    config: { iterations: 200, evaluation: { every: 4, episodes: 128, temperature: 1 } },
  },
  methods: [
    { name: "successor", recipe: "errands", set: { config: { bootstrap: "successor" } } },
    { name: "request", recipe: "errands", set: { config: { bootstrap: "request" } } },
    { name: "none", recipe: "errands", set: { config: { bootstrap: "none" } } },
    { name: "hindsight", recipe: "errands-hindsight" },
  ],
});
