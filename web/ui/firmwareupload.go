package ui

import (
	"context"
	"encoding/json"

	"fleetd/fleet/firmware"
	"fleetd/web/i18n"
)

// An UploadBox takes firmware files: POST [PathImages] with file (repeated)
// reads them, POST [PathImages] "/confirm" with staged (repeated), board-ID of
// each, notes and then makes images of them. The script sends each file
// separately and shows its progress.
type UploadBox struct {
	Boards  []string           // of the fleet, offered for the board
	Drafts  []firmware.Release // that the images may be added to
	Then    string             // what to do next: [UploadThenRelease], the id of a draft, or "keep"
	Board   string             // as typed
	Notes   string             // as typed
	Results []UploadResult
	Problem string // why nothing was taken, in the page's language
}

// An UploadResult is what became of one file.
type UploadResult struct {
	FileName string           // foreign text
	Staged   *firmware.Staged // read, and waits to be confirmed
	Image    *firmware.Image
	Manifest bool  // it was the .manifest file of the image
	Fault    Fault // what is wrong with it
}

// A Fault is why something was not accepted, in the page's language: what kind
// of fault, and which one. The zero value means no fault.
type Fault struct{ Title, Detail string }

func (f Fault) any() bool { return f != Fault{} }

// uploadKeys are the messages that the upload's script fills in.
var uploadKeys = map[string]string{
	"waiting": "firmware.upload.waiting", "sending": "firmware.upload.sending", "checking": "firmware.upload.checking",
	"cancel": "firmware.upload.cancel", "canceled": "firmware.upload.canceled", "too_large": "firmware.upload.too_large",
	"broken": "firmware.upload.broken", "empty": "firmware.upload.empty", "progress": "firmware.upload.progress",
}

// uploadTexts are those messages as JSON, placeholders unfilled.
func uploadTexts(ctx context.Context) string {
	l := page(ctx).Lang
	texts := make(map[string]string, len(uploadKeys))
	for name, key := range uploadKeys {
		texts[name] = i18n.Raw(l, key, 2)
	}
	b, _ := json.Marshal(texts) // strings always marshal
	return string(b)
}

// UploadThenRelease makes a release of the images that were uploaded.
const UploadThenRelease = "release"

// about is the image that a file is, or is about.
func (r UploadResult) about() firmware.Image {
	switch {
	case r.Image != nil:
		return *r.Image
	case r.Staged != nil:
		return r.Staged.Image
	}
	return firmware.Image{}
}

// waits reports whether an upload waits to be confirmed.
func (u UploadBox) waits() bool {
	for _, r := range u.Results {
		if r.Staged != nil {
			return true
		}
	}
	return false
}
