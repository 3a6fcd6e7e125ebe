// Applies the chosen theme before the first paint. Without a choice the browser's preference holds.
"use strict";
(() => {
  let kept = null;
  try { kept = localStorage.getItem("gpu-autopilot-theme"); } catch { /* storage is off: the preference holds */ }
  if (kept === "light" || kept === "dark") document.documentElement.dataset.theme = kept;
})();
