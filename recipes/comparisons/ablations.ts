/**
 * Ablations of NLAC on eight errands: the full method, and the method with one part removed or
 * changed. docs/algorithms/nlac.md explains the options.
 */
import { defineComparison } from "nlac/compare";
import { oneWorld } from "./_notes.ts";

export default defineComparison({
  name: "ablations",
  description: "ablations of NLAC on eight errands, one part at a time: five seeds each, on the CPU",
  notes: [
    "Every row except no-rehearsal rehearses 8 labelled samples of synthetic errands per update, which the paper does not have.",
    oneWorld,
  ],
  environmentSteps: 1200,
  seeds: [0, 1, 2, 3, 4],
  set: { config: { iterations: 200, evaluation: { every: 4, episodes: 128, temperature: 1 } } },
  methods: [
    { name: "nlac", recipe: "errands" },
    { name: "no-refinement", recipe: "errands", set: { config: { refinements: 0 } } },
    { name: "no-average", recipe: "errands", set: { config: { targetRate: 1 } } },
    { name: "sampled-token", recipe: "errands", set: { config: { support: "sampled" } } },
    { name: "no-rehearsal", recipe: "errands", set: { config: { rehearsal: 0 } } },
    { name: "no-bootstrap", recipe: "errands", set: { config: { bootstrap: "none" } } },
    { name: "uniform-replay", recipe: "errands", set: { config: { priorityExponent: 0 } } },
  ],
});
