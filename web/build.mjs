// Builds src/ into the files that the wheel ships: page.js, page.css, page.html, LICENCES.txt.
//
//     cd web && npm ci && npm run build
//
// The first line of page.js holds a digest of the sources; tests/page compares it, so a forgotten build is found
// without Node.

import { createHash } from "node:crypto";
import { readFileSync, readdirSync, writeFileSync } from "node:fs";
import { dirname, join, relative } from "node:path";
import { fileURLToPath } from "node:url";
import { build, transform } from "esbuild";

const here = dirname(fileURLToPath(import.meta.url));
const out = join(here, "../optrace/rendering/page/assets");

function files(folder) {
  return readdirSync(folder, { withFileTypes: true })
    .flatMap((entry) => {
      const path = join(folder, entry.name);
      return entry.isDirectory() ? files(path) : [path];
    })
    .sort();
}

const digest = createHash("sha256");
for (const path of [...files(join(here, "src")), join(here, "package-lock.json")]) {
  digest.update(relative(here, path).replaceAll("\\", "/"));
  digest.update("\0");
  digest.update(readFileSync(path));
}

const built = await build({
  entryPoints: [join(here, "src/main.ts")],
  bundle: true,
  minify: true,
  format: "iife",
  target: "es2022",
  charset: "ascii",
  legalComments: "none", // whole licences are shipped instead
  metafile: true,
  write: false,
  absWorkingDir: here,
});
// The script stands inside an HTML page: nothing in it may end the element.
const script = built.outputFiles[0].text.replaceAll("</script", "<\\/script").replaceAll("<!--", "<\\!--");
writeFileSync(join(out, "page.js"), `/* built from web/, sources ${digest.digest("hex")} */\n${script}`);

const style = await transform(readFileSync(join(here, "src/page.css"), "utf8"), { loader: "css", minify: true });
writeFileSync(join(out, "page.css"), style.code);
writeFileSync(join(out, "page.html"), readFileSync(join(here, "src/page.html")));

const packages = new Set();
for (const input of Object.keys(built.metafile.inputs)) {
  const found = input.match(/node_modules\/((?:@[^/]+\/)?[^/]+)\//);
  if (found) packages.add(found[1]);
}
const licences = [...packages].sort().map((name) => {
  const folder = join(here, "node_modules", name);
  const { version } = JSON.parse(readFileSync(join(folder, "package.json"), "utf8"));
  const file = readdirSync(folder).find((entry) => /^licen[cs]e/i.test(entry));
  if (!file) throw new Error(`${name} ships no licence file`);
  return `${name} ${version}\n\n${readFileSync(join(folder, file), "utf8").trim()}\n`;
});
writeFileSync(
  join(out, "LICENCES.txt"),
  `The page's script contains these packages.\n\n${licences.join(`\n${"-".repeat(100)}\n\n`)}`,
);
console.log(`page.js ${(script.length / 1024).toFixed(0)} kB, ${packages.size} packages`);
