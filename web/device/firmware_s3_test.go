package device_test

import (
	"bytes"
	"fmt"
	"net/http/httptest"
	"testing"
	"time"

	"github.com/johannesboyne/gofakes3"
	"github.com/johannesboyne/gofakes3/backend/s3mem"

	"fleetd/fleet/blobs"
	"fleetd/fleet/firmware"
)

// Devices get images from S3 in the same way as from a directory: whole, with their length, and in
// ranges.
func TestDownloadFromS3(t *testing.T) {
	t.Setenv("AWS_ACCESS_KEY_ID", "fleetd-test")
	t.Setenv("AWS_SECRET_ACCESS_KEY", "not-a-secret")
	memory := s3mem.New()
	if err := memory.CreateBucket("blobs"); err != nil {
		t.Fatal(err)
	}
	server := httptest.NewServer(gofakes3.New(memory).Server())
	defer server.Close()
	store, err := blobs.Open(t.Context(), "s3://blobs/prefix?region=x&endpoint="+server.URL)
	if err != nil {
		t.Fatal(err)
	}
	d := newDepotOf(t, store, firmware.DownloadsOptions{})
	content, key := d.image(300_000)
	for _, tt := range []struct {
		header       string
		status       int
		from, to     int
		contentRange string
	}{
		{"", 200, 0, 300_000, ""},
		{"bytes=0-", 206, 0, 300_000, "bytes 0-299999/300000"},
		{"bytes=1000-", 206, 1000, 300_000, "bytes 1000-299999/300000"},
		{"bytes=10-19", 206, 10, 20, "bytes 10-19/300000"},
		{"bytes=-7", 206, 299_993, 300_000, "bytes 299993-299999/300000"},
		{"bytes=300000-", 416, 0, 0, "bytes */300000"},
	} {
		_, address := d.link(key, len(content), time.Minute)
		var headers []string
		if tt.header != "" {
			headers = []string{"Range", tt.header}
		}
		resp, body := get(t, address, headers...)
		if resp.StatusCode != tt.status || tt.status != 416 && !bytes.Equal(body, content[tt.from:tt.to]) {
			t.Errorf("%q: %s, %d bytes; want status %d, bytes %d to %d", tt.header, resp.Status, len(body), tt.status, tt.from, tt.to)
		}
		if got, want := resp.Header.Get("Content-Length"), fmt.Sprint(len(body)); got != want {
			t.Errorf("%q: Content-Length %s, want %s", tt.header, got, want)
		}
		if got := resp.Header.Get("Content-Range"); got != tt.contentRange {
			t.Errorf("%q: Content-Range %q, want %q", tt.header, got, tt.contentRange)
		}
	}
	server.Close()
	_, address := d.link(key, len(content), time.Minute)
	if resp, _ := get(t, address); resp.StatusCode != 503 {
		t.Errorf("S3 is away: %s, want 503", resp.Status)
	}
}
