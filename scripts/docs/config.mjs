// The documentation site: navigation, search, and the place of each page. Copied to build/docs.
import { existsSync, readdirSync, readFileSync } from "node:fs";
import { join } from "node:path";
import { fileURLToPath } from "node:url";
import { defineConfig } from "vitepress";

const place = fileURLToPath(new URL("..", import.meta.url));
const titleOf = (page) => /^# (.*)$/m.exec(readFileSync(join(place, page), "utf8"))?.[1] ?? page;
const item = (page) => ({ text: titleOf(page).replaceAll("`", ""), link: `/${page.replace(/\.md$/, "")}` });
const folder = (name) =>
  existsSync(join(place, name))
    ? readdirSync(join(place, name))
        .filter((file) => file.endsWith(".md") && file !== "README.md")
        .sort()
        .map((file) => item(`${name}/${file}`))
    : [];
const pages = (...names) => names.filter((name) => existsSync(join(place, name))).map(item);

export default defineConfig({
  title: "nlac",
  description: "Train LLM agents with Natural Language Actor-Critic",
  outDir: "site",
  cacheDir: ".cache",
  rewrites: {
    "README.md": "index.md",
    "docs/environments/README.md": "docs/environments/index.md",
    "bench/README.md": "bench/index.md",
  },
  markdown: { theme: { light: "github-light", dark: "github-dark" }, languageAlias: { "": "txt" } },
  themeConfig: {
    search: { provider: "local" },
    outline: [2, 3],
    nav: [
      { text: "Tutorial", link: "/docs/tutorial" },
      { text: "Cookbook", link: "/docs/cookbook/tools" },
      { text: "Reference", link: "/docs/reference/" },
    ],
    sidebar: [
      {
        text: "Start",
        items: pages(
          "docs/installing.md",
          "docs/tutorial.md",
          "docs/training.md",
          "docs/evaluating.md",
          "docs/dash.md",
          "docs/comparing.md",
        ),
      },
      { text: "Cookbook", items: folder("docs/cookbook") },
      { text: "Methods", items: folder("docs/algorithms") },
      { text: "Environments", collapsed: true, items: folder("docs/environments") },
      {
        text: "Use",
        items: pages(
          ...["docs/models.md", "docs/adding-a-family.md", "docs/serving.md", "docs/agents.md"],
          ...["docs/scaling.md", "docs/reporting.md", "docs/paper-recipes.md"],
        ),
      },
      {
        text: "Reference",
        items: [
          { text: "API", link: "/docs/reference/" },
          ...pages("docs/errors.md", "ARCHITECTURE.md", "CONTRIBUTING.md", "SECURITY.md", "CHANGELOG.md"),
        ],
      },
      {
        text: "Evidence",
        collapsed: true,
        items: pages(
          ...["docs/evidence.md", "docs/numerics.md", "docs/reliability.md", "docs/threat-model.md"],
          ...["bench/README.md", "docs/experiments.md"],
        ),
      },
      { text: "Decisions", collapsed: true, items: folder("docs/decisions") },
    ],
  },
  // Links to files that are not pages; scripts/check-links.mjs checks that they exist.
  ignoreDeadLinks: [
    /\.(ts|mjs|sh|json|txt|yml|py)$/,
    ...[/\/$/, /examples\/\w+\/index$/, /LICENSE/, /Dockerfile$/, /reference\/.*#/],
  ],
});
