/**
 * Whether what NLAC learns carries to tasks it never saw: SmolLM2-135M on errands whose orders follow from the parts
 * of their names. Success is measured on 30 kinds that no method trains on. Needs a GPU, or many hours of a CPU.
 */
import { defineComparison } from "nlac";
import { cost } from "./_notes.ts";

export default defineComparison({
  name: "held-out",
  description:
    "NLAC, RFT and imitation in hindsight on SmolLM2-135M, tested on held-out errands: three worlds",
  notes: [
    "Success is of 30 held-out kinds; every seed has a world of its own.",
    "NLAC rehearses 4 labelled texts of made-up errands an update. Every method begins with the same warm-up.",
    cost,
  ],
  environmentSteps: 4000,
  seeds: [1, 2, 3],
  seedFields: ["environment.options.seed"],
  paired: true,
  methods: [
    { name: "nlac", recipe: "composed-errands" },
    { name: "rft", recipe: "composed-errands-rft" },
    { name: "hindsight", recipe: "composed-errands-rft", set: { config: { imitate: "hindsight" } } },
  ],
});
