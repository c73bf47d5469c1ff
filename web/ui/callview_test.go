package ui_test

import (
	"bytes"
	"strings"
	"testing"

	"fleetd/web/i18n"
	"fleetd/web/ui"
)

// What fleetd observed is in the page's language; an older record's text is
// marked as foreign.
func TestTimeLineIsTranslated(t *testing.T) {
	for lang, want := range map[i18n.Lang][]string{
		i18n.English: {"core dump, 68.4 KiB", "no sign of life within 1.5 times its keepalive"},
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
