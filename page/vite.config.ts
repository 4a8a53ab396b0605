import { defineConfig, type Plugin } from "vite";

const OUT = "../frigate/pages/static";

/** Scripts and styles go into the page itself, compressed: a file is what a mail can carry. `offline.html` unpacks them. */
function oneFile(): Plugin {
  return {
    name: "one-file",
    enforce: "post",
    async generateBundle(_, bundle) {
      const page = bundle["offline.html"];
      if (page?.type !== "asset") throw new Error("offline.html was not built");
      let html = String(page.source);
      const program = { style: "", script: "" };
      for (const [name, file] of Object.entries(bundle)) {
        if (name === "offline.html") continue;
        const mark = new RegExp(`<(script|link)[^>]*(src|href)="[^"]*${file.fileName}"[^>]*>(</script>)?`);
        if (!mark.test(html)) throw new Error(`${file.fileName} is not in offline.html`);
        html = html.replace(mark, "");
        if (file.type === "chunk") program.script += file.code;
        else program.style += String(file.source);
        delete bundle[name];
      }
      const packed = await gzipped(JSON.stringify(program));
      page.source = html.replace("<!-- program -->", () => packed);
    },
  };
}

/** In base64. */
async function gzipped(text: string): Promise<string> {
  const packed = await new Response(new Blob([text]).stream().pipeThrough(new CompressionStream("gzip"))).arrayBuffer();
  return btoa(Array.from(new Uint8Array(packed), (byte) => String.fromCharCode(byte)).join(""));
}

// `vite build` makes the page of the service, `vite build --mode offline` the one file that a command fills.
export default defineConfig(({ mode }) => {
  const offline = mode === "offline";
  return {
    base: "./",
    plugins: offline ? [oneFile()] : [],
    build: {
      outDir: OUT,
      emptyOutDir: !offline,
      target: "es2022",
      chunkSizeWarningLimit: 2500,
      assetsInlineLimit: 0,
      modulePreload: false,
      rolldownOptions: { input: offline ? "offline.html" : "index.html" },
    },
  };
});
