/** The quickstart with three seeds, so that a check of learning does not depend on one. */
import { defineComparison } from "nlac/compare";

export default defineComparison({
  name: "quickstart",
  description: "NLAC on eight errands with three seeds, on the CPU",
  environmentSteps: 1200,
  seeds: [0, 1, 2],
  set: { config: { iterations: 200 } }, // the environment steps end it
  methods: [{ name: "nlac", recipe: "quickstart" }],
});
