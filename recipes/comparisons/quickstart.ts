/** The quickstart with three seeds: that it learns must not hang on one. */
import { defineComparison } from "nlac";

export default defineComparison({
  name: "quickstart",
  description: "NLAC on eight errands with three seeds, on the CPU",
  environmentSteps: 1200,
  seeds: [0, 1, 2],
  set: { config: { iterations: 200 } }, // the steps end it
  methods: [{ name: "nlac", recipe: "quickstart" }],
});
