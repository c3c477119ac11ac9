/** Grades a pair that needs the grader's thread, says the verdict, and has nothing more to do. */

import { gradeMath } from "../../lib/environments/math/grade.ts";

console.log(await gradeMath("\\sqrt{8}", "2\\sqrt{2}"));
