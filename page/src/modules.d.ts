declare module "maplibre-gl/dist/maplibre-gl-worker.mjs?url" {
  const url: string;
  export default url;
}
declare module "maplibre-gl/dist/maplibre-gl-worker.mjs?raw" {
  const code: string;
  export default code;
}
