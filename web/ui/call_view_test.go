package ui_test

import (
	"bytes"
	"strings"
	"testing"

	"fleetd/fleet"
	"fleetd/web/i18n"
	"fleetd/web/ui"
)

// fleetd's observations are in the page's language; the text of an older record is marked as
// foreign.
func TestTimeLineIsTranslated(t *testing.T) {
	for lang, want := range map[i18n.Lang][]string{
		i18n.English: {"core dump, 68.4 KiB", "no data within 1.5 times its keepalive"},
		i18n.Chinese: {"核心转储，68.4 KiB", "1.5 倍保活时间内没有任何数据"},
	} {
		var buf bytes.Buffer
		s := sample{page: ui.CallPage{Call: rebootView()}.Page()}
		if err := s.page.Render(pageContext(lang, s), &buf); err != nil {
			t.Fatal(err)
		}
		for _, text := range append(want, `<span class="foreign muted">of an older version</span>`) {
			if !strings.Contains(buf.String(), text) {
				t.Errorf("%s: no %q", lang, text)
			}
		}
	}
}

// A call whose outcome is decided by evidence does not wait for an answer.
func TestCallsByEvidenceDoNotWaitForAnAnswer(t *testing.T) {
	for tool, want := range map[string]string{fleet.ToolReboot: "watching for its restart",
		fleet.ToolReconfigureWiFi: "leave the network", fleet.ToolUpgradeFirmware: "the new build",
		"self.get_device_status": "Waiting for the answer"} {
		for _, lang := range i18n.Langs {
			var buf bytes.Buffer
			s := sample{page: ui.CallPage{Call: ui.CallView{Call: fleet.Call{Device: "a085e3112233", Tool: tool,
				State: fleet.CallSent}}}.Page()}
			if err := s.page.Render(pageContext(lang, s), &buf); err != nil {
				t.Fatal(err)
			}
			if said := strings.Contains(buf.String(), want); said != (lang == i18n.English) {
				t.Errorf("%s in %s: says %q: %t", tool, lang, want, said)
			}
			waits := strings.Contains(buf.String(), i18n.Text(lang, "call.means.sent"))
			if waits == fleet.ByEvidence(tool) {
				t.Errorf("%s in %s: waits for an answer: %t", tool, lang, waits)
			}
		}
	}
}
