package api

import (
	"encoding/json"
	"testing"

	"fleetd/fleet"
	"fleetd/fleet/firmware"
)

func TestVersionWarningsOfImages(t *testing.T) {
	for version, want := range map[string]string{
		"2.4.3": `[]`,
		"v1.0":  `[{"code":"version_no_number","params":{"part":"v1","read":""}}]`,
		"2025-11-02": `[{"code":"version_suffix_ignored","params":{"part":"2025-11-02","read":"2025"}},` +
			`{"code":"version_is_date","params":{"part":"2025-11-02","read":"2025"}}]`,
	} {
		if got, err := json.Marshal(newImageView(firmware.Image{Version: version}, fleet.Reason{}).Warnings); err != nil ||
			string(got) != want {
			t.Errorf("%s: %s, %v, want %s", version, got, err, want)
		}
	}
}
