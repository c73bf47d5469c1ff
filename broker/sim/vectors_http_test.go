package sim

import (
	"bytes"
	"errors"
	"io"
	"net/http"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

func TestSystemInfo(t *testing.T) {
	var file struct {
		Requests []struct {
			Name, Body string
			Headers    map[string]string
		}
	}
	load(t, "ota_check.json", &file)
	prepare := map[string]func(*Device){
		"known board, idle":         func(*Device) {},
		"4G board, csq is a string": func(d *Device) { d.link.network, d.link.csq = cellular, 21 },
		"SSID with quote: body is NOT valid JSON, answer 200 from the headers": func(d *Device) { d.link.ssid = `Bob"s net` },
		"eFuse serial number": func(d *Device) { d.id.serial = "SN-0123456789ABCDEF0123456789AB-" },
	}
	for _, c := range file.Requests {
		if prepare[c.Name] == nil {
			continue
		}
		delete(c.Headers, "Host")
		t.Run(c.Name, func(t *testing.T) {
			d := vectorDevice(t)
			running := *d.flash.slots[0].build
			running.elf = "9f2c4d6b8a01c3e5f7091b2d4f60718293a4b5c6d7e8f90a1b2c3d4e5f607101"
			d.flash.slots[0].build = &running
			prepare[c.Name](d)
			d.fleet.http.Transport = roundTrip(func(r *http.Request) (*http.Response, error) {
				body, _ := io.ReadAll(r.Body)
				if diff := cmp.Diff(c.Body, string(body)); diff != "" {
					t.Error(diff)
				}
				got := map[string]string{}
				for k := range r.Header {
					got[k] = r.Header.Get(k)
				}
				if diff := cmp.Diff(c.Headers, got); diff != "" {
					t.Error(diff)
				}
				return nil, errors.New("enough")
			})
			if _, err := d.poll(t.Context()); err == nil {
				t.Error("poll without an answer succeeded")
			}
		})
	}
}

func TestOTAAnswers(t *testing.T) {
	var file struct {
		Responses []struct {
			Name, Body string
			Expect     struct {
				Crash bool `json:"backend_must_not_send"`
			}
		}
	}
	load(t, "ota_check.json", &file)
	for _, c := range file.Responses {
		t.Run(c.Name, func(t *testing.T) {
			d := vectorDevice(t)
			saw, err := d.take(value(c.Body))
			if err == nil {
				_, _, err = parseEndpoint(d.nvs.endpoint)
			}
			if fatal(err) != c.Expect.Crash {
				t.Fatalf("error %v, want a crash: %v", err, c.Expect.Crash)
			}
			due := strings.HasPrefix(c.Name, "upgrade due") || strings.HasPrefix(c.Name, "forced")
			if due != (saw.upgrade.url != "") {
				t.Errorf("upgrades from %q", saw.upgrade)
			}
			if strings.HasPrefix(c.Name, "unclaimed") && (saw.code != "482913" || saw.challenge != "f3b0c2d4e5") {
				t.Errorf("code %q, challenge %q", saw.code, saw.challenge)
			}
		})
	}
}

func TestVersionCompare(t *testing.T) {
	var file struct {
		Pairs []struct {
			Current, Offered string
			Newer            bool
		} `json:"version_compare"`
	}
	load(t, "ota_check.json", &file)
	for _, c := range file.Pairs {
		if got, err := newerVersion(c.Current, c.Offered); err != nil || got != c.Newer {
			t.Errorf("newerVersion(%q, %q) = %v, %v, want %v", c.Current, c.Offered, got, err, c.Newer)
		}
	}
	for _, bad := range []string{"v2.4.3", "latest", "2..4", "20260808120000", ".1", "-"} {
		if _, err := newerVersion("2.4.2", bad); err == nil {
			t.Errorf("version %q does not throw", bad)
		}
	}
}

func TestActivationBody(t *testing.T) {
	var file struct {
		Activate []struct{ Name, Body string }
	}
	load(t, "ota_check.json", &file)
	d := vectorDevice(t)
	if got := d.activationBody("x"); got != file.Activate[0].Body {
		t.Errorf("without serial number: %s", got)
	}
	d.id.serial = "SN-0123456789ABCDEF0123456789AB-"
	want := value(file.Activate[1].Body)
	if got := signedActivation(d.id.serial, "f3b0c2d4e5", bytes.Repeat([]byte{0x11}, 32)); got != string(want) {
		t.Errorf("got %s, want %s", got, want)
	}
}

func TestUploads(t *testing.T) {
	var file struct {
		Cases []struct {
			Name, Method string
			Headers      map[string]string
			Body         []byte `json:"body_base64"`
		}
	}
	load(t, "http_uploads.json", &file)
	picture := []byte("\xff\xd8\xff\xe0\x00\x10JFIF\x00\x01\x01\x00\x00\x01\x00\x01\x00\x00\xff\xd9")
	for _, c := range file.Cases[:2] {
		t.Run(c.Name, func(t *testing.T) {
			start := bytes.Index(c.Body, []byte("\xff\xd8"))
			picture = c.Body[start : bytes.Index(c.Body, []byte("\xff\xd9"))+2]
			d := vectorDevice(t)
			d.fleet.http.Transport = roundTrip(func(r *http.Request) (*http.Response, error) {
				body, _ := io.ReadAll(r.Body)
				if diff := cmp.Diff(string(c.Body), string(body)); diff != "" {
					t.Error(diff)
				}
				got := map[string]string{}
				for k := range r.Header {
					if r.Header.Get(k) != "" { // an empty User-Agent keeps Go's away
						got[k] = r.Header.Get(k)
					}
				}
				delete(c.Headers, "Transfer-Encoding")
				if diff := cmp.Diff(c.Headers, got); diff != "" {
					t.Error(diff)
				}
				if r.ContentLength != -1 {
					t.Errorf("Content-Length %d in place of chunks", r.ContentLength)
				}
				return &http.Response{StatusCode: 200, Body: http.NoBody, Request: r}, nil
			})
			if c.Name == "screen snapshot" {
				resp, err := d.sendSnapshot(t.Context(), "http://fleet.example.org/u/1", picture)
				if err != nil {
					t.Fatal(err)
				}
				resp.Body.Close()
				return
			}
			resp, err := d.explain(t.Context(), vision{"http://fleet.example.org/v", "tok-1"}, "What is this?", picture)
			if err != nil {
				t.Fatal(err)
			}
			resp.Body.Close()
		})
	}
}

func TestAppImages(t *testing.T) {
	var file struct {
		Cases []struct {
			Name   string
			Image  []byte `json:"image_base64"`
			Expect struct {
				Valid   bool   `json:"valid_app"`
				Chip    uint16 `json:"chip_id"`
				Version string
				IDF     string
				Elf     string `json:"elf_sha256"`
			}
		}
	}
	load(t, "app_image.json", &file)
	for _, c := range file.Cases {
		t.Run(c.Name, func(t *testing.T) {
			if c.Expect.Chip == 0 {
				c.Expect.Chip = esp32s3.imageID
			}
			for _, step := range []int{1, 7, 4096} {
				b, err := readImage(c.Image, c.Expect.Chip, step)
				if (err == nil) != c.Expect.Valid {
					t.Fatalf("in steps of %d: %v", step, err)
				}
				if c.Expect.Valid && b.version != c.Expect.Version ||
					c.Expect.Elf != "" && (b.elf != c.Expect.Elf || b.idf != c.Expect.IDF) {
					t.Errorf("in steps of %d: %+v", step, b)
				}
			}
		})
	}
}

func readImage(data []byte, chip uint16, step int) (*build, error) {
	image := newAppImage(chip)
	for len(data) > 0 {
		n := min(step, len(data))
		if _, err := image.Write(data[:n]); err != nil {
			return nil, err
		}
		data = data[n:]
	}
	return image.finish()
}
