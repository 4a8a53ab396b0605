import { defineConfig, type Plugin } from "vite";

const OUT = "../frigate/pages/static";

/** Scripts and styles go into the page itself, so that a report is one file. */
function oneFile(): Plugin {
  return {
    name: "one-file",
    enforce: "post",
    generateBundle(_, bundle) {
      const page = bundle["report.html"];
      if (page?.type !== "asset") throw new Error("report.html was not built");
      let html = String(page.source);
      for (const [name, file] of Object.entries(bundle)) {
        if (name === "report.html") continue;
        const text = file.type === "chunk" ? file.code.replaceAll("</script", "<\\/script") : String(file.source);
        const [mark, element] =
          file.type === "chunk"
            ? [new RegExp(`<script[^>]*src="[^"]*${file.fileName}"[^>]*></script>`), `<script type="module">${text}</script>`]
            : [new RegExp(`<link[^>]*href="[^"]*${file.fileName}"[^>]*>`), `<style>${text}</style>`];
        if (!mark.test(html)) throw new Error(`${file.fileName} is not in report.html`);
        html = html.replace(mark, () => element);
        delete bundle[name];
      }
      page.source = html;
    },
  };
}

// `vite build` makes the page of the service, `vite build --mode report` the one file that `frigate report` fills.
export default defineConfig(({ mode }) => {
  const report = mode === "report";
  return {
    base: "./",
    plugins: report ? [oneFile()] : [],
    build: {
      outDir: OUT,
      emptyOutDir: !report,
      target: "es2022",
      chunkSizeWarningLimit: 2500,
      assetsInlineLimit: 0,
      modulePreload: false,
      rolldownOptions: { input: report ? "report.html" : "index.html" },
    },
  };
});
