package releases

import (
	"archive/zip"
	"bytes"
	"encoding/json"
	"io"
	"net/http"
	"net/url"
	"strconv"
	"strings"
	"time"

	"github.com/go-chi/chi/v5"

	"fleetd/fleet"
	"fleetd/fleet/firmware"
	"fleetd/web/console/pages"
	"fleetd/web/request"
	"fleetd/web/ui"
)

// downloadWait is how long a whole flash may take to reach a distant browser.
const downloadWait = 10 * time.Minute

// chipFamilies are the chips that the installer in the browser supports, with its names for them.
var chipFamilies = map[string]string{"esp32": "ESP32", "esp32c2": "ESP32-C2", "esp32c3": "ESP32-C3",
	"esp32c5": "ESP32-C5", "esp32c6": "ESP32-C6",
	"esp32c61": "ESP32-C61", "esp32h2": "ESP32-H2", "esp32p4": "ESP32-P4", "esp32s2": "ESP32-S2", "esp32s3": "ESP32-S3"}

// improvWait is how long the installer waits for the new firmware to accept Wi-Fi settings. It does
// not wait for firmware without this feature.
const improvWait = 20 // seconds

// manifest is the file that esp-web-tools reads. Paths are relative to it.
type manifest struct {
	Name           string          `json:"name"`
	Version        string          `json:"version"`
	PromptErase    bool            `json:"new_install_prompt_erase"`
	ImprovWaitTime int             `json:"new_install_improv_wait_time"`
	Builds         []manifestBuild `json:"builds"`
}

type manifestBuild struct {
	ChipFamily string         `json:"chipFamily"`
	Improv     bool           `json:"improv"`
	Parts      []manifestPart `json:"parts"`
}

type manifestPart struct {
	Path   string `json:"path"`
	Offset int64  `json:"offset"`
}

func newManifest(i firmware.Installable) manifest {
	build := manifestBuild{ChipFamily: chipFamilies[i.Image.Chip], Improv: ui.SpeaksImprov(i.Image)}
	for n, p := range i.Layout.Parts {
		build.Parts = append(build.Parts, manifestPart{Path: "parts/" + strconv.Itoa(n) + ".bin", Offset: p.Offset})
	}
	// The name is the project, which the firmware itself reports over Improv: the installer
	// recognizes its own firmware by it, and updates without erasing.
	m := manifest{Name: i.Image.Project, Version: i.Image.Version, PromptErase: true, Builds: []manifestBuild{build}}
	if build.Improv {
		m.ImprovWaitTime = improvWait
	}
	return m
}

// installable returns the image in the address, if this operator may install it now. It forbids
// caching, so every request checks the permission again.
func (s *Server) installable(w http.ResponseWriter, r *http.Request) (firmware.Installable, bool) {
	w.Header().Set("Cache-Control", "private, no-store")
	sum, err := url.PathUnescape(chi.URLParam(r, "image"))
	if err != nil || !isSHA256(sum) {
		s.Fail(w, r, pages.ErrNoPage)
		return firmware.Installable{}, false
	}
	found, err := s.Firmware.Install(r.Context(), pages.ViewerOf(r.Context()).Actor(), sum)
	if err != nil {
		s.Fail(w, r, err)
		return firmware.Installable{}, false
	}
	return found, true
}

func (s *Server) sendManifest(w http.ResponseWriter, r *http.Request) {
	i, ok := s.installable(w, r)
	if !ok {
		return
	}
	if chipFamilies[i.Image.Chip] == "" {
		s.Fail(w, r, fleet.Refuse(fleet.ErrConflict, "chip_not_in_browser", "chip", i.Image.Chip))
		return
	}
	b, _ := json.Marshal(newManifest(i)) // of strings and numbers
	w.Header().Set("Content-Type", "application/json")
	_, _ = w.Write(b) // an error means that the reader has gone
}

func (s *Server) sendPart(w http.ResponseWriter, r *http.Request) {
	i, ok := s.installable(w, r)
	if !ok {
		return
	}
	n, err := strconv.Atoi(chi.URLParam(r, "n"))
	if err != nil || strconv.Itoa(n) != chi.URLParam(r, "n") {
		s.Fail(w, r, pages.ErrNoPage)
		return
	}
	body, part, err := s.Firmware.OpenPart(r.Context(), i, n)
	if err != nil {
		s.Fail(w, r, err)
		return
	}
	defer body.Close()
	s.sendFile(w, r, ui.PartFile(part), part.Size, func(w io.Writer) error { return copyWhole(w, body, part.Size) })
}

// sendFile sends size bytes as a download; -1 if the size is unknown.
func (s *Server) sendFile(w http.ResponseWriter, r *http.Request, name string, size int64,
	write func(io.Writer) error) {
	h := w.Header()
	h.Set("Content-Type", "application/octet-stream")
	h.Set("Content-Disposition", `attachment; filename="`+name+`"`)
	if size >= 0 {
		h.Set("Content-Length", strconv.FormatInt(size, 10))
	}
	if r.Method == http.MethodHead {
		return
	}
	if err := write(w); err != nil {
		if r.Context().Err() == nil {
			s.Log.Warn("firmware sent only in part", "path", request.Redact(r.URL.Path), "request", request.ID(w), "err", err)
		}
		panic(http.ErrAbortHandler) // a truncated file must not look complete
	}
}

func copyWhole(w io.Writer, r io.Reader, size int64) error {
	n, err := io.Copy(w, io.LimitReader(r, size))
	if err == nil && n != size {
		err = io.ErrUnexpectedEOF
	}
	return err
}

// sendParts packs the parts with their addresses in the format of ESP-IDF's flash_args: "esptool
// write-flash @flash_args" writes them all.
func (s *Server) sendParts(w http.ResponseWriter, r *http.Request) {
	i, ok := s.installable(w, r)
	if !ok {
		return
	}
	s.sendFile(w, r, ui.PartsFile(i.Image), -1, func(w io.Writer) error {
		z := zip.NewWriter(w)
		for n, p := range i.Layout.Parts {
			if err := s.packPart(r, z, i, n, ui.PartFile(p)); err != nil {
				return err
			}
		}
		args, err := z.Create("flash_args")
		if err == nil {
			_, err = io.WriteString(args, strings.ReplaceAll(ui.FlashArgs(i.Layout.Parts), ".bin ", ".bin\n")+"\n")
		}
		if err != nil {
			return err
		}
		return z.Close()
	})
}

func (s *Server) packPart(r *http.Request, z *zip.Writer, i firmware.Installable, n int, name string) error {
	body, part, err := s.Firmware.OpenPart(r.Context(), i, n)
	if err != nil {
		return err
	}
	defer body.Close()
	w, err := z.Create(name)
	if err != nil {
		return err
	}
	return copyWhole(w, body, part.Size)
}

// sendMerged sends the flash from its first byte to the end of the last part.
func (s *Server) sendMerged(w http.ResponseWriter, r *http.Request) {
	i, ok := s.installable(w, r)
	if !ok {
		return
	}
	last := i.Layout.Parts[len(i.Layout.Parts)-1]
	s.sendFile(w, r, ui.MergedFile(i.Image), last.Offset+last.Size, func(w io.Writer) error {
		at := int64(0)
		for n, p := range i.Layout.Parts {
			if err := erased(w, p.Offset-at); err != nil {
				return err
			}
			if err := s.copyPart(w, r, i, n); err != nil {
				return err
			}
			at = p.Offset + p.Size
		}
		return nil
	})
}

func (s *Server) copyPart(w io.Writer, r *http.Request, i firmware.Installable, n int) error {
	body, part, err := s.Firmware.OpenPart(r.Context(), i, n)
	if err != nil {
		return err
	}
	defer body.Close()
	return copyWhole(w, body, part.Size)
}

var blank = bytes.Repeat([]byte{0xFF}, 32<<10)

// erased writes n bytes of erased flash.
func erased(w io.Writer, n int64) error {
	for n > 0 {
		k, err := w.Write(blank[:min(n, int64(len(blank)))])
		if err != nil {
			return err
		}
		n -= int64(k)
	}
	return nil
}
