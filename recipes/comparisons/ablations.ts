/**
 * What each part of NLAC is worth on eight errands: the method, and the method with one part taken away or changed. What
 * the switches mean is in docs/algorithms/nlac.md.
 */
import { defineComparison } from "nlac";
import { oneWorld } from "./_notes.ts";

export default defineComparison({
  name: "ablations",
  description: "NLAC on eight errands less one part at a time: five seeds each, on the CPU",
  notes: [
    "Every row but no-rehearsal rehearses 8 labelled texts of made-up errands an update, which the paper does not have.",
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
