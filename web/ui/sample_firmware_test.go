package ui_test

import (
	"fmt"
	"strings"
	"time"

	"github.com/a-h/templ"
	"github.com/google/uuid"

	"fleetd/fleet"
	"fleetd/fleet/campaign"
	"fleetd/fleet/firmware"
	"fleetd/web/i18n"
	"fleetd/web/ui"
)

var firmwareSamples = []sample{
	{"firmware-releases-0", "/firmware", ui.ReleasesPage{List: list("/firmware", ""), Empty: true, CanAct: true,
		Upload: uploadBox()}.Page(), false},
	{"firmware-releases", "/firmware", releasesPage(), false},
	{"firmware-releases-none", "/firmware?state=revoked", ui.ReleasesPage{List: list("/firmware", "state=revoked"),
		CanAct: true}.Page(), false},
	{"firmware-images-0", "/firmware/images", ui.ImagesPage{List: list("/firmware/images", ""), Empty: true,
		Upload: uploadBox()}.Page(), false},
	{"firmware-images", "/firmware/images", imagesPage(), false},
	{"firmware-uploaded", "/firmware/images", uploadedPage(), false},
	{"firmware-image", "/firmware/images/x", imagePage(0), false},
	{"flash-problems", "/flash", flashPage(), false},
	{"firmware-image-revoked", "/firmware/images/x", imagePage(3), false},
	{"firmware-image-hostile", "/firmware/images/x", imagePage(4), false},
	{"firmware-release", "/firmware/releases/x", releasePage(firmware.ReleaseReleased), false},
	{"firmware-release-draft", "/firmware/releases/x", releasePage(firmware.ReleaseDraft), false},
	{"firmware-release-revoked", "/firmware/releases/x", releasePage(firmware.ReleaseRevoked), false},
	{"firmware-new", "/firmware/releases/new", releaseForm(""), false},
	{"firmware-new-none", "/firmware/releases/new", ui.ReleaseFormPage{}.Page(), false},
	{"firmware-edit", "/firmware/releases/x/edit", releaseForm(i18n.Mark("The version 2.4.3 differs from that of an image, 2.4.2.")),
		false},
}

func init() { samples = append(samples, firmwareSamples...) }

// image returns one of a few images: of a board, of a chip, merged, revoked, hostile.
func image(i int) firmware.Image {
	img := firmware.Image{
		SHA256: fmt.Sprintf("%064x", 0xa1b2c3d4e5+i*7919), Size: 2_612_344 + int64(i)*70_001, FileName: "xiaozhi.bin",
		Board: []string{"bread-compact-wifi", "esp-box-3", "", "m5stack-core-s3", hostile[3]}[i%5],
		Chip:  []string{"esp32s3", "esp32s3", "esp32c3", "esp32s3", "esp32p4"}[i%5], Version: []string{"2.4.3", "2.4.3",
			"2.4.3", "2.4.2", "2.4.3-rc1"}[i%5],
		Project: "xiaozhi", IDFVersion: "v6.0.2", ELFSHA256: strings.Repeat("9f2c41", 10) + fmt.Sprintf("%04x", i),
		CompiledAt: "Aug  8 2026 08:33:45",
		MinChipRev: 2, MaxChipRev: 199, FlashSize: 16 << 20, UploadedBy: anna,
		CreatedAt: now.Add(-time.Duration(i*i+1) * time.Hour),
	}
	switch i % 5 {
	case 0:
		img.Notes = "Built on the release machine.\nMicrophone gain lowered."
		img.Signatures = []firmware.ImageSignature{{KeyDigest: strings.Repeat("7e", 32), Scheme: "rsa3072", Valid: true,
			Trusted: true}, {KeyDigest: strings.Repeat("0c", 32), Scheme: "rsa3072", Valid: true}}
	case 1:
		img.Signatures = []firmware.ImageSignature{{KeyDigest: strings.Repeat("0c", 32), Scheme: "ecdsa256", Valid: true}}
		img.MergedBinary, img.FileName, img.MaxChipRev = true, "merged-binary.bin", 65535
	case 3:
		img.RevokedAt, img.RevokedBy, img.RevokeReason = ago(30*time.Minute), "anna",
			"bricks boards with the old touch controller"
	case 4:
		img.Project, img.FileName, img.CompiledAt = hostile[2], hostile[0]+".bin", hostile[4]
		img.Version, img.NotOfferable = "2.4.3-rc1", "the version would make devices crash"
		img.Signatures = []firmware.ImageSignature{{KeyDigest: strings.Repeat("ff", 32), Scheme: "rsa3072"}}
	}
	return img
}

func uploadBox() ui.UploadBox { return ui.UploadBox{Boards: boards} }

func imagesPage() templ.Component {
	v := ui.ImagesPage{List: list("/firmware/images", "chip=esp32s3"), Chips: []string{"esp32s3", "esp32c3", "esp32p4"},
		Upload: uploadBox(), CanAct: true, Next: "n"}
	for i := range 9 {
		v.Rows = append(v.Rows, ui.NewImageRow(image(i), ui.Running{Count: i * i * 53, Fleet: 4312}, true))
	}
	return v.Page()
}

func uploadedPage() templ.Component {
	v := ui.ImagesPage{List: list("/firmware/images", ""), Chips: []string{"esp32s3"}, Upload: uploadBox(), CanAct: true}
	first, other := image(0), image(4)
	v.Upload.Results = []ui.UploadResult{
		{FileName: "xiaozhi.bin", Staged: &firmware.Staged{ID: uuid.Max, Image: first}},
		{FileName: hostile[0], Staged: &firmware.Staged{Image: other, Known: true}},
		{FileName: "stored.bin", Image: &first},
		{FileName: "xiaozhi.bin.manifest", Manifest: true, Staged: &firmware.Staged{Image: first}},
		{FileName: "partition-table.bin", Fault: ui.Fault{Title: i18n.Mark("Not an app image."),
			Detail: i18n.Mark("this is a partition table; upload xiaozhi.bin or merged-binary.bin")}},
	}
	v.Rows = []ui.ImageRow{ui.NewImageRow(first, ui.Running{Fleet: 4312}, true)}
	return v.Page()
}

func release(state firmware.ReleaseState) firmware.Release {
	r := firmware.Release{ID: uuid.NewSHA1(uuid.Nil, []byte(state)), Version: "2.4.3",
		Notes: "Quieter microphone.\nFaster start.", State: state,
		Images: []firmware.Image{image(0), image(1), image(2), image(4)}, CreatedBy: anna,
		CreatedAt: now.Add(-26 * time.Hour), ChangedAt: now.Add(-3 * time.Hour)}
	if state == firmware.ReleaseRevoked || state == firmware.ReleaseDeprecated {
		r.Reason = "bricks boards with the old touch controller"
	}
	return r
}

func releasesPage() templ.Component {
	v := ui.ReleasesPage{List: list("/firmware", ""), CanAct: true, Next: "n"}
	for i, s := range firmware.ReleaseStates {
		v.Rows = append(v.Rows, ui.NewReleaseRow(release(s), ui.Running{Count: i * 611, Fleet: 4312}, i))
	}
	return v.Page()
}

func fitView(path string) ui.FitView {
	ids := []fleet.DeviceID{device(0).ID, device(1).ID, device(2).ID, device(3).ID, device(4).ID}
	return ui.FitView{Path: path, Query: "tag:lab", Mode: firmware.ModeAuto, Chip: "esp32s3",
		ELF: []string{image(0).ELFSHA256}, Report: &firmware.FitReport{
			Matched: 4312, Fit: 3000, Sample: ids, RolledBack: 11, RolledBackSample: ids[2:], Misfits: []firmware.Misfits{
				{Reason: firmware.SkipInstalled, Count: 1120, Sample: ids},
				{Reason: firmware.SkipNoImage, Board: boards[1], Count: 90, Sample: ids,
					Detail: fleet.Because(firmware.FitRelease, "version", "2.4.3", "board", boards[1], "chip", "esp32s3")},
				{Reason: firmware.SkipNoImage, Count: 8, Sample: ids[:1], Detail: fleet.Because(firmware.FitRelease, "version",
					"2.4.3", "board", fleet.Because(firmware.FitUnnamedBoard), "chip", "esp32c3")},
				{Reason: firmware.SkipTooLarge, Detail: fleet.Because(firmware.FitSlot, "slot_kib", 1536, "image_kib", 2551), Count: 98, Sample: ids},
				{Reason: firmware.SkipHeld, Count: 80, Sample: ids[:2]}, {Reason: firmware.SkipPartitions,
					Detail: legacy("no partition assets"), Count: 3, Sample: ids[:3]},
			}}}
}

// flashPage has images without a usable layout: one with a reason, and one stored by an older
// version.
func flashPage() templ.Component {
	return ui.FlashPage{Missing: []ui.FlashChoice{
		ui.NewFlashChoice(firmware.Installable{Image: image(0), ReleaseVersion: "2.4.3",
			Layout: &firmware.ImageLayout{Problem: fleet.Because("image_bootloader.damaged", "cause",
				fleet.Because("image_checksum.differs", "stored_hex", 0x12, "computed_hex", 0x34))}}),
		ui.NewFlashChoice(firmware.Installable{Image: image(1), ReleaseVersion: "2.4.3",
			Layout: &firmware.ImageLayout{Problem: legacy("two parts lie on each other")}})},
		Joining: ui.Joining{Since: now}, Setup: setup("code")}.Page()
}

func imagePage(i int) templ.Component {
	v := ui.FirmwareImagePage{Image: image(i), Boards: boards, CanAct: true, CanRevoke: true,
		Adoption: ui.Adoption{Running: 1120, Fit: 3011}, Fit: fitView("/firmware/images/x")}
	if i == 0 {
		v.Blank = ui.LayoutCard{Image: v.Image, Layout: firmware.ImageLayout{Image: v.Image.SHA256,
			Problem: fleet.Because("image_layout.other_app", "label", "ota_0", "other", hostile[0])}, CanAct: true}
		v.Releases = []ui.ReleaseRef{{ID: "r1", Version: "2.4.3", State: firmware.ReleaseReleased},
			{ID: "r2", Version: "2.4.3", State: firmware.ReleaseDeprecated}}
	}
	if i == 4 {
		v.Fit = ui.FitView{Path: "/firmware/images/x", Query: "nope:x", BadQuery: i18n.Mark("there is no field nope"),
			Mode: firmware.ModePull}
		v.Adoption = ui.Adoption{}
	}
	return v.Page()
}

func releasePage(state firmware.ReleaseState) templ.Component {
	v := ui.FirmwareReleasePage{Release: release(state), Running: map[string]int{image(0).ELFSHA256: 1100,
		image(1).ELFSHA256: 20}, CanAct: true, CanRevoke: true,
		Adoption: ui.Adoption{Running: 1120, Fit: 3011}, Fit: fitView("/firmware/releases/x")}
	v.Fit.Chip, v.Fit.ELF = "", []string{"a", "b"}
	if state == firmware.ReleaseReleased {
		v.Campaigns = []campaign.Campaign{
			{ID: uuid.Max, Plan: campaign.Plan{Name: "2.4.3 to the lab"}, State: campaign.Completed, Targets: 31},
			{ID: uuid.Nil, Plan: campaign.Plan{Name: hostile[0]}, State: campaign.Running, Targets: 4101},
		}
	}
	return v.Page()
}

func releaseForm(problem string) templ.Component {
	v := ui.ReleaseFormPage{Chosen: []string{image(0).SHA256, image(1).SHA256}, Version: "2.4.3",
		Fault: ui.Fault{Detail: problem}, More: true}
	if problem != "" {
		v.ID, v.Notes = "r1", "Quieter microphone."
	}
	for i := range 5 {
		v.Images = append(v.Images, ui.NewImageRow(image(i), ui.Running{}, true))
	}
	return v.Page()
}

// deviceUpdates returns a deployment that waits, one that failed and one that succeeded.
func deviceUpdates() ui.DeviceUpdates {
	toLab := campaign.Campaign{ID: uuid.Max, Plan: campaign.Plan{Name: "2.4.3 to the lab"}, State: campaign.Running}
	id := device(0).ID
	waiting := campaign.Deployment{ID: uuid.NewSHA1(uuid.Nil, []byte("w")), Campaign: toLab.ID, Device: id,
		State: campaign.DeploymentQueued, FromVersion: "2.4.2", ToVersion: "2.4.3", UpdatedAt: now.Add(-time.Hour)}
	failed, done := waiting, waiting
	failed.State, failed.Class, failed.Attempt = campaign.DeploymentRolledBack, campaign.FailureRolledBack, 1
	failed.Reason = legacy("it booted the new build, then came back with the old one after 41 s")
	done.State, done.FromVersion, done.ToVersion, done.UpdatedAt = campaign.DeploymentSucceeded, "2.4.1", "2.4.2",
		now.AddDate(0, 0, -3)
	event := func(at time.Duration, kind fleet.EvidenceKind, detail string, from,
		to campaign.DeploymentState) campaign.DeploymentEvent {
		return campaign.DeploymentEvent{At: now.Add(-time.Hour + at), Attempt: 1, Kind: kind, Reason: legacy(detail),
			From: from,
			To:   to}
	}
	until := now.Add(5 * time.Hour)
	return ui.DeviceUpdates{Device: id, CanAct: true, More: true,
		Outlook: campaign.Outlook{Deployment: &waiting, Campaign: &toLab, BlockReason: campaign.BlockWindow, Until: &until,
			Quarantine: &campaign.Quarantine{Device: id, Reason: legacy("three attempts failed: download stalled"), Since: now,
				Until: now.Add(20 * time.Hour)},
			Newer: []firmware.Release{release(firmware.ReleaseReleased)}},
		Deployments: []ui.DeploymentView{
			{Campaign: toLab, Deployment: waiting, Events: []campaign.DeploymentEvent{event(0, fleet.EvidencePlanned, "", "",
				campaign.DeploymentPending)}},
			{Campaign: toLab, Deployment: failed, Events: []campaign.DeploymentEvent{
				event(0, fleet.EvidencePlanned, "", "", campaign.DeploymentPending), event(time.Second, fleet.EvidenceDispatched,
					"", campaign.DeploymentQueued, campaign.DeploymentDispatching),
				event(2*time.Second, fleet.EvidenceSent, "", campaign.DeploymentDispatching, campaign.DeploymentSent),
				event(6*time.Second, fleet.EvidenceGet, "", campaign.DeploymentSent, campaign.DeploymentDownloading),
				event(70*time.Second, fleet.EvidenceDownloaded, "2,612,344 bytes", campaign.DeploymentDownloading,
					campaign.DeploymentDownloaded),
				event(72*time.Second, fleet.EvidenceDisconnect, hostile[0], campaign.DeploymentDownloaded,
					campaign.DeploymentRebooting),
				event(113*time.Second, fleet.EvidenceBootPoll, "2.4.2, ota_0", campaign.DeploymentRebooting,
					campaign.DeploymentRolledBack)}},
			{Campaign: toLab, Deployment: done},
		}}
}
