package sim

import (
	"testing"
)

func TestAppImage(t *testing.T) {
	for _, b := range catalogue() {
		image, err := AppImage(b.name, "2.4.2", 20_000)
		if err != nil {
			t.Fatal(err)
		}
		if len(image) < 19_900 || len(image) > 20_100 {
			t.Errorf("%s: %d bytes, want about 20000", b.name, len(image))
		}
		got, err := readImage(image, b.chip.imageID, 1000)
		if err != nil {
			t.Fatalf("%s: its own devices refuse it: %v", b.name, err)
		}
		builds := b.releases()
		if want := *builds[len(builds)-1]; *got != want {
			t.Errorf("%s: holds %+v, want the build that devices of that version run, %+v", b.name, *got, want)
		}
	}
	if _, err := AppImage("no-such-board", "2.5.0", 1000); err == nil {
		t.Error("an unknown board has an image")
	}
}
