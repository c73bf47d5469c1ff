package ui

import (
	"context"
	"encoding/json"

	"fleetd/fleet/firmware"
	"fleetd/web/i18n"
)

// An UploadBox uploads firmware files: POST [PathImages] with file (repeated) reads them, then POST
// [PathImages] "/confirm" with staged (repeated), board-ID of each, notes and then turns them into
// images. The script sends each file separately and shows its progress.
type UploadBox struct {
	Boards  []string           // of the fleet: suggestions for the board
	Drafts  []firmware.Release // to which the images may be added
	Then    string             // the next step: [UploadThenRelease], the id of a draft, or "keep"
	Board   string             // as typed
	Notes   string             // as typed
	Results []UploadResult
	Problem string // why no file was accepted, in the page's language
}

// An UploadResult is the outcome for one file.
type UploadResult struct {
	FileName string           // foreign text
	Staged   *firmware.Staged // read, and waiting for confirmation
	Image    *firmware.Image
	Manifest bool  // it was the .manifest file of the image
	Fault    Fault // the fault of the file
}

// A Fault is the reason why something was rejected, in the page's language: the kind of fault, and
// its details. The zero value means no fault.
type Fault struct{ Title, Detail string }

func (f Fault) any() bool { return f != Fault{} }

// uploadKeys are the messages that the upload's script fills in.
var uploadKeys = map[string]string{
	"waiting": "firmware.upload.waiting", "sending": "firmware.upload.sending", "checking": "firmware.upload.checking",
	"cancel": "firmware.upload.cancel", "canceled": "firmware.upload.canceled", "too_large": "firmware.upload.too_large",
	"broken": "firmware.upload.broken", "empty": "firmware.upload.empty", "progress": "firmware.upload.progress",
}

// uploadTexts returns those messages as JSON, with unfilled placeholders.
func uploadTexts(ctx context.Context) string {
	l := page(ctx).Lang
	texts := make(map[string]string, len(uploadKeys))
	for name, key := range uploadKeys {
		texts[name] = i18n.Raw(l, key, 2)
	}
	b, _ := json.Marshal(texts) // strings always marshal
	return string(b)
}

// UploadThenRelease is the step that creates a release of the uploaded images.
const UploadThenRelease = "release"

// about returns the image that a file contains, or is about.
func (r UploadResult) about() firmware.Image {
	switch {
	case r.Image != nil:
		return *r.Image
	case r.Staged != nil:
		return r.Staged.Image
	}
	return firmware.Image{}
}

// waits reports whether an upload waits for confirmation.
func (u UploadBox) waits() bool {
	for _, r := range u.Results {
		if r.Staged != nil {
			return true
		}
	}
	return false
}
