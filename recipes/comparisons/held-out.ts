/**
 * Does NLAC's training transfer to tasks it never saw? SmolLM2-135M on errands whose orders follow
 * from the parts of their names. Success is measured on 30 kinds that no method trains on. Needs a
 * GPU, or many hours on a CPU.
 */
import { defineComparison } from "nlac/compare";
import { cost } from "./_notes.ts";

export default defineComparison({
  name: "held-out",
  description:
    "NLAC, RFT and imitation in hindsight with SmolLM2-135M, tested on held-out errands: three worlds",
  notes: [
    "Success is measured on 30 held-out kinds; every seed has its own world.",
    "Beyond the reward, NLAC's targets read the desk's replies, and every update rehearses 4 labelled samples of synthetic errands; hindsight imitates the action that the replies name. Every method starts with the same warm-up.",
    cost,
  ],
  environmentSteps: 4000,
  seeds: [1, 2, 3],
  seedFields: ["environment.options.seed"],
  paired: true,
  methods: [
    { name: "nlac", recipe: "composed-errands", set: { config: { diagnostics: { every: 10 } } } },
    { name: "rft", recipe: "composed-errands-rft" },
    { name: "hindsight", recipe: "composed-errands-rft", set: { config: { imitate: "hindsight" } } },
  ],
});
