// The beginning: a report if the page carries one, else the dashboard.
import { render } from "preact";
import { App } from "./app";
import { Report } from "./report";
import type { ReportPage } from "./report";

const place = document.getElementById("app");
const report = document.getElementById("report");
if (place) render(report ? <Report page={JSON.parse(report.textContent ?? "") as ReportPage} /> : <App />, place);
