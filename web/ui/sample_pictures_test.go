package ui_test

import (
	"net/url"
	"time"

	"github.com/a-h/templ"

	"fleetd/fleet"
	"fleetd/web/ui"
)

// pictures are of two days and both kinds.
func pictures() []ui.Snapshot {
	screen, camera, old := *picture, *picture, *picture
	screen.Device, screen.CallID = "a085e3112233", "c1"
	screen.Actor = fleet.Principal{Kind: fleet.KindOperator, Name: "anna"}
	camera.ID, camera.Device, camera.Camera, camera.Question = "s2", "a085e3112233", true, "What is <i>this</i>?"
	old.ID, old.Device, old.DeviceName, old.At = "s3", "a085e3112234", hostile[2], now.Add(-26*time.Hour)
	return []ui.Snapshot{screen, camera, old}
}

func screenPage(filtered bool) templ.Component {
	p := ui.ScreenPage{Head: head("screen"), Gallery: ui.Gallery{List: list("/devices/a/screen", ""), Pictures: pictures(),
		Next: "n"}}
	if filtered {
		p.Gallery.List = ui.ListURL{Path: "/devices/a/screen", Values: url.Values{"kind": {"camera"}, "since": {"x"}}}
		p.Gallery.SinceText, p.Gallery.Problem, p.Gallery.Pictures = "x", "…", nil
	} else {
		p.Latest = picture
	}
	return p.Page()
}

func picturePage() templ.Component {
	all := pictures()
	return ui.PicturePage{Picture: all[1], Before: &all[0], Older: &all[2], Filter: url.Values{"kind": {"camera"}}}.Page()
}

func comparePage(overlay bool) templ.Component {
	all := pictures()
	return ui.ComparePage{A: &ui.ComparedPicture{Snapshot: all[2], Newer: &all[1]},
		B: &ui.ComparedPicture{Snapshot: all[0], Older: &all[1]}, Overlay: overlay}.Page()
}
