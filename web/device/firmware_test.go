package device_test

import (
	"bufio"
	"bytes"
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/uuid"

	"fleetd/fleet"
	"fleetd/fleet/firmware"
	"fleetd/fleet/fleettest"
)

// TestStockDownload sends a stock device's request, with only Host and Connection, and compares the
// response byte by byte.
func TestStockDownload(t *testing.T) {
	d := newDepot(t, firmware.DownloadsOptions{})
	content, key := d.image(300_000)
	l, address := d.link(key, len(content), time.Minute)
	u, _ := url.Parse(address)
	c, err := net.Dial("tcp", u.Host)
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	fmt.Fprintf(c, "GET %s HTTP/1.1\r\nHost: %s\r\nConnection: close\r\n\r\n", u.Path, u.Host)
	resp, err := http.ReadResponse(bufio.NewReader(c), nil)
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	body, err := io.ReadAll(resp.Body)
	if err != nil || !bytes.Equal(body, content) {
		t.Errorf("%d bytes, %v", len(body), err)
	}
	if resp.StatusCode != 200 || resp.ContentLength != int64(len(content)) || len(resp.TransferEncoding) > 0 ||
		resp.Header.Get("Content-Encoding") != "" {
		t.Errorf("status %s, length %d, %v, %v", resp.Status, resp.ContentLength, resp.TransferEncoding, resp.Header)
	}
	if resp, body := get(t, address); resp.StatusCode != 404 || len(body) > 100 {
		t.Errorf("a second time: %s, %s", resp.Status, body)
	}
	if diff := cmp.Diff([]string{"get@0", "downloaded@300000"}, d.downloaded(l.Deployment)); diff != "" {
		t.Errorf("observed (-want +got)\n%s", diff)
	}
	for _, o := range d.seen[l.Deployment] {
		if o.Attempt != 2 || o.At.IsZero() {
			t.Errorf("observation %+v", o)
		}
	}
	fleettest.Eventually(t, "an idle service", func() bool {
		return d.downloads.Room() == 500 && len(d.downloads.Active()) == 0
	})
}

func TestRanges(t *testing.T) {
	d := newDepot(t, firmware.DownloadsOptions{})
	content, key := d.image(1000)
	tag := `"` + key + `"`
	tests := []struct {
		header, ifRange string
		status          int
		from, to        int // of the content
		used            bool
	}{
		{"", "", 200, 0, 1000, true},
		{"bytes=0-", "", 206, 0, 1000, true},
		{"bytes=400-", "", 206, 400, 1000, false},
		{"bytes=400-", tag, 206, 400, 1000, false},
		{"bytes=400-", `"another"`, 200, 0, 1000, true},
		{"bytes=100-199", "", 206, 100, 200, false},
		{"bytes=900-5000", "", 206, 900, 1000, false},
		{"bytes=-10", "", 206, 990, 1000, false},
		{"bytes=-5000", "", 206, 0, 1000, true},
		{"bytes=999-999", "", 206, 999, 1000, false},
		{"bytes=1000-", "", 416, 0, 0, false},
		{"bytes=-0", "", 416, 0, 0, false},
		{"bytes=0-1,5-6", "", 200, 0, 1000, true},
		{"bytes=5-2", "", 200, 0, 1000, true},
		{"bytes=+5-", "", 200, 0, 1000, true},
		{"bytes=--5", "", 200, 0, 1000, true},
		{"bytes=", "", 200, 0, 1000, true},
		{"bytes=99999999999999999999-", "", 200, 0, 1000, true},
		{"lines=1-2", "", 200, 0, 1000, true},
	}
	for _, tt := range tests {
		t.Run(tt.header+" "+tt.ifRange, func(t *testing.T) {
			l, address := d.link(key, 1000, time.Minute)
			headers := []string{"Range", tt.header}
			if tt.ifRange != "" {
				headers = append(headers, "If-Range", tt.ifRange)
			}
			resp, body := get(t, address, headers...)
			if resp.StatusCode != tt.status || tt.status != 416 && !bytes.Equal(body, content[tt.from:tt.to]) {
				t.Errorf("%s, %d bytes", resp.Status, len(body))
			}
			if want := strconv.Itoa(len(body)); resp.Header.Get("Content-Length") != want {
				t.Errorf("Content-Length %q, want %s", resp.Header.Get("Content-Length"), want)
			}
			switch want := map[int]string{206: fmt.Sprintf("bytes %d-%d/1000", tt.from, tt.to-1),
				416: "bytes */1000"}[tt.status]; {
			case resp.Header.Get("Content-Range") != want:
				t.Errorf("Content-Range %q, want %q", resp.Header.Get("Content-Range"), want)
			}
			if again, _ := get(t, address); (again.StatusCode == 404) != tt.used {
				t.Errorf("afterwards %s; used up should be %v", again.Status, tt.used)
			}
			if tt.used {
				if story := d.downloaded(l.Deployment); story[len(story)-1] != "downloaded@1000" {
					t.Errorf("observed %v", story)
				}
			}
		})
	}
}

// TestPieces: a link is used up after its image was sent without a gap, in any number of pieces;
// sending only the last bytes does not count as a download.
func TestPieces(t *testing.T) {
	d := newDepot(t, firmware.DownloadsOptions{})
	_, key := d.image(1000)
	l, address := d.link(key, 1000, time.Minute)
	for _, piece := range []string{"bytes=600-", "bytes=0-399", "bytes=300-599", "bytes=590-999"} {
		if resp, _ := get(t, address, "Range", piece); resp.StatusCode != 206 {
			t.Fatalf("%s: %s", piece, resp.Status)
		}
	}
	if story := d.downloaded(l.Deployment); story[len(story)-1] != "downloaded@1000" ||
		slices.Contains(story[:len(story)-1], "downloaded@1000") {
		t.Errorf("observed %v", story)
	}
	if again, _ := get(t, address); again.StatusCode != 404 {
		t.Errorf("afterwards %s", again.Status)
	}

	// The beginning was sent by an earlier process, which knew how much.
	l, address = d.link(key, 1000, time.Minute)
	l.Begun = true
	d.links.links[string(l.TokenHash)] = l
	for _, piece := range []string{"bytes=600-799", "bytes=900-999", "bytes=790-999"} {
		if resp, _ := get(t, address, "Range", piece); resp.StatusCode != 206 {
			t.Fatalf("%s: %s", piece, resp.Status)
		}
	}
	if story := d.downloaded(l.Deployment); story[len(story)-1] != "downloaded@1000" ||
		slices.Contains(story[:len(story)-1], "downloaded@1000") {
		t.Errorf("of a link that was used before: %v", story)
	}
}

// FuzzRange compares partOf with the Range parser of net/http.
func FuzzRange(f *testing.F) {
	for _, s := range []string{"bytes=0-", "bytes=5-7", "bytes=-3", "bytes=9-", "bytes=1-2,3-4", "bytes= 1-2",
		"bytes=a-b"} {
		f.Add(s)
	}
	d := newDepot(f, firmware.DownloadsOptions{})
	content, key := d.image(1000)
	f.Fuzz(func(t *testing.T, header string) {
		if strings.ContainsFunc(header, func(r rune) bool { return r < ' ' || r > '~' }) {
			t.Skip("no header")
		}
		_, address := d.link(key, len(content), time.Minute)
		resp, body := get(t, address, "Range", header)
		oracle := httptest.NewRecorder()
		req := httptest.NewRequest(http.MethodGet, "/", nil)
		req.Header.Set("Range", header)
		http.ServeContent(oracle, req, "", time.Time{}, bytes.NewReader(content))
		if resp.StatusCode == 206 && (oracle.Code != 206 || !bytes.Equal(body, oracle.Body.Bytes())) {
			t.Errorf("%q: %s, %d bytes; net/http says %d", header, resp.Header.Get("Content-Range"), len(body), oracle.Code)
		}
		if resp.StatusCode == 200 && !bytes.Equal(body, content) {
			t.Errorf("%q: 200 with %d bytes", header, len(body))
		}
	})
}

func TestDeadFirmwareLinks(t *testing.T) {
	d := newDepot(t, firmware.DownloadsOptions{})
	content, key := d.image(1000)
	_, expired := d.link(key, len(content), -time.Second)
	revoked, address := d.link(key, len(content), time.Minute)
	d.links.revoke(revoked.Deployment)
	good, other := d.link(key, len(content), time.Minute)
	token := strings.Split(other, "/")[4]
	bodies := map[string]bool{}
	for name, address := range map[string]string{
		"expired": expired, "revoked": address, "of another form": d.URL + "/d/x/firmware.bin",
		"wrong":      d.URL + "/d/" + strings.Repeat("A", 43) + "/firmware.bin",
		"other case": strings.Replace(other, token, strings.ToUpper(token), 1),
	} {
		resp, body := get(t, address)
		if resp.StatusCode != 404 || resp.ContentLength < 1 || resp.ContentLength > 100 {
			t.Errorf("%s: %s, %s", name, resp.Status, body)
		}
		bodies[string(body)] = true
	}
	if len(bodies) != 1 {
		t.Errorf("dead links can be distinguished: %v", bodies)
	}
	resp, err := client.Head(other)
	if err != nil {
		t.Fatal(err)
	}
	resp.Body.Close()
	if resp.StatusCode != 200 || resp.ContentLength != 1000 || len(d.story(good.Deployment)) > 0 {
		t.Errorf("HEAD: %s, length %d, observed %v", resp.Status, resp.ContentLength, d.story(good.Deployment))
	}
	if resp, _ := get(t, other); resp.StatusCode != 200 {
		t.Errorf("after a HEAD: %s", resp.Status)
	}
}

// slow begins a download and reads only its headers.
func slow(t *testing.T, address string) *http.Response {
	t.Helper()
	resp, err := client.Get(address)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { resp.Body.Close() })
	return resp
}

// TestCutAtOnce revokes downloads of devices that read nothing: the server must not wait for them.
func TestCutAtOnce(t *testing.T) {
	d := newDepot(t, firmware.DownloadsOptions{})
	const size = 16 << 20
	_, key := d.image(size)
	ways := map[string]func(firmware.Link){
		"deployment": func(l firmware.Link) {
			d.links.revoke(l.Deployment)
			d.downloads.Revoke(uuid.New(), l.Deployment)
		},
		"image": func(l firmware.Link) {
			d.links.revoke(l.Deployment)
			d.downloads.RevokeImages([]string{l.Image})
		},
	}
	for name, revoke := range ways {
		t.Run(name, func(t *testing.T) {
			l, address := d.link(key, size, time.Minute)
			resp := slow(t, address)
			fleettest.Eventually(t, "progress", func() bool { return d.downloads.Active()[l.Deployment] > 0 })
			revoke(l)
			fleettest.Eventually(t, "the end", func() bool {
				return len(d.downloads.Active()) == 0 && d.downloads.Room() == 500
			})
			n, err := io.Copy(io.Discard, resp.Body)
			if err == nil || n > size/2 {
				t.Errorf("the device got %d bytes, %v", n, err)
			}
			story := d.story(l.Deployment)
			if len(story) != 2 || !strings.HasPrefix(story[1], "cut@") {
				t.Errorf("observed %v", story)
			}
			if detail := d.seen[l.Deployment][len(d.seen[l.Deployment])-1].Reason; !detail.Is(firmware.TransferRevoked) {
				t.Errorf("detail %q", detail)
			}
			if resp, _ := get(t, address); resp.StatusCode != 404 {
				t.Errorf("afterwards %s", resp.Status)
			}
		})
	}
}

// TestDeviceLeavesAndResumes closes the socket in the middle, and resumes from there.
func TestDeviceLeavesAndResumes(t *testing.T) {
	d := newDepot(t, firmware.DownloadsOptions{})
	const size = 16 << 20
	content, key := d.image(size)
	l, address := d.link(key, size, time.Minute)
	resp := slow(t, address)
	got := make([]byte, 1<<20)
	if _, err := io.ReadFull(resp.Body, got); err != nil {
		t.Fatal(err)
	}
	resp.Body.Close()
	fleettest.Eventually(t, "the cut", func() bool { return len(d.story(l.Deployment)) == 2 })
	if resp, rest := get(t, address, "Range", fmt.Sprintf("bytes=%d-", len(got)), "If-Range",
		resp.Header.Get("ETag")); resp.StatusCode != 206 || !bytes.Equal(append(got, rest...), content) {
		t.Errorf("%s, %d bytes", resp.Status, len(rest))
	}
	story := d.downloaded(l.Deployment)
	if len(story) != 4 || !strings.HasPrefix(story[1], "cut@") || story[2] != fmt.Sprintf("get@%d", len(got)) ||
		story[3] != fmt.Sprintf("downloaded@%d", size) {
		t.Errorf("observed %v", story)
	}
}

// TestNewestGetWins: a device that restarts sends a new request while its old connection still
// seems open. The end of the old connection proves nothing.
func TestNewestGetWins(t *testing.T) {
	d := newDepot(t, firmware.DownloadsOptions{MaxConcurrent: 1})
	const size = 16 << 20
	content, key := d.image(size)
	l, address := d.link(key, size, time.Minute)
	slow(t, address)
	if resp, body := get(t, address); resp.StatusCode != 200 || !bytes.Equal(body, content) {
		t.Errorf("%s, %d bytes", resp.Status, len(body))
	}
	if diff := cmp.Diff([]string{"get@0", "get@0", fmt.Sprintf("downloaded@%d", size)},
		d.downloaded(l.Deployment)); diff != "" {
		t.Errorf("observed (-want +got)\n%s", diff)
	}
}

func TestDownloadsWaitForAPlace(t *testing.T) {
	d := newDepot(t, firmware.DownloadsOptions{MaxConcurrent: 1})
	const size = 16 << 20
	content, key := d.image(size)
	_, first := d.link(key, size, time.Minute)
	resp := slow(t, first)
	if d.downloads.Room() != 0 {
		t.Errorf("room for %d", d.downloads.Room())
	}
	l, second := d.link(key, size, time.Minute)
	done := make(chan []byte)
	go func() {
		_, body := get(t, second)
		done <- body
	}()
	time.Sleep(50 * time.Millisecond)
	if len(d.story(l.Deployment)) > 0 {
		t.Error("a download that waits is no GET yet")
	}
	resp.Body.Close()
	if body := <-done; !bytes.Equal(body, content) {
		t.Errorf("%d bytes", len(body))
	}
}

func TestNoPlaceInTime(t *testing.T) {
	d := newDepot(t, firmware.DownloadsOptions{MaxConcurrent: 1})
	const size = 16 << 20
	_, key := d.image(size)
	_, first := d.link(key, size, time.Minute)
	slow(t, first)
	l, second := d.link(key, size, time.Minute)
	d.handler.SetTimeouts(50*time.Millisecond, time.Minute)
	if resp, body := get(t, second); resp.StatusCode != 503 || resp.Header.Get("Retry-After") == "" ||
		len(d.story(l.Deployment)) > 0 {
		t.Errorf("no place: %s, %v, %s", resp.Status, resp.Header, body)
	}
	if len(d.downloads.Active()) != 1 {
		t.Errorf("active: %v", d.downloads.Active())
	}
}

// TestStalledDeviceLosesItsPlace: a device that reads nothing loses its slot, and the stall is
// recorded.
func TestStalledDeviceLosesItsPlace(t *testing.T) {
	d := newDepot(t, firmware.DownloadsOptions{MaxConcurrent: 1})
	const size = 16 << 20
	_, key := d.image(size)
	d.handler.SetTimeouts(time.Minute, 300*time.Millisecond)
	l, address := d.link(key, size, time.Minute)
	slow(t, address)
	fleettest.Eventually(t, "the cut", func() bool { return len(d.story(l.Deployment)) == 2 })
	d.mu.Lock()
	last := d.seen[l.Deployment][len(d.seen[l.Deployment])-1]
	d.mu.Unlock()
	if last.Kind != fleet.EvidenceCut || !last.Reason.Is(firmware.TransferStuck) {
		t.Errorf("observed %+v", last)
	}
	fleettest.Eventually(t, "a free place", func() bool { return d.downloads.Room() == 1 })
}

func TestDamagedImageIsNotServed(t *testing.T) {
	d := newDepot(t, firmware.DownloadsOptions{})
	missing := hex.EncodeToString(sha256.New().Sum(nil))
	l, address := d.link(missing, 1000, time.Minute)
	if resp, _ := get(t, address); resp.StatusCode != 503 || len(d.story(l.Deployment)) > 0 {
		t.Errorf("an image that is gone: %s, observed %v", resp.Status, d.story(l.Deployment))
	}
	content, key := d.image(1000)
	l, address = d.link(key, len(content)+5, time.Minute) // the record states more bytes than the image has
	u, _ := url.Parse(address)
	resp, err := client.Get(u.String())
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	if body, err := io.ReadAll(resp.Body); err == nil {
		t.Errorf("a short image came as a whole one of %d bytes", len(body))
	}
	fleettest.Eventually(t, "the cut", func() bool { return len(d.story(l.Deployment)) == 2 })
}
