package firmware

import (
	"context"
	"errors"
	"io"
	"os"

	"fleetd/fleet"
	"fleetd/fleet/espimage"
)

// Layout returns what a blank board needs in addition to an image.
// [fleet.ErrNotFound] if it was not uploaded.
func (f *Service) Layout(ctx context.Context, image string) (ImageLayout, error) {
	if f.o.Layouts == nil {
		return ImageLayout{}, fleet.Refuse(fleet.ErrNotFound, "no_layout")
	}
	return f.o.Layouts.Layout(ctx, image)
}

// keepMerged stores what a merged binary contains in addition to its application. If its parts
// do not fit together, the application is still good; the problem is recorded.
func (f *Service) keepMerged(ctx context.Context, by fleet.Principal, img Image, file *os.File, size int64,
	parsed *espimage.Image) error {
	if parsed.Merged == nil || f.o.Layouts == nil {
		return nil
	}
	if known, err := f.o.Layouts.Layout(ctx, img.SHA256); err == nil && known.Complete() {
		return nil
	} else if err != nil && !errors.Is(err, fleet.ErrNotFound) {
		return err
	}
	layout, err := espimage.MergedLayout(file, size, parsed)
	var fault *espimage.Fault
	if errors.As(err, &fault) {
		return f.putLayout(ctx, by, ImageLayout{Image: img.SHA256, Problem: FaultReason(fault)})
	}
	if err != nil {
		return imageError(err)
	}
	_, err = f.keepLayout(ctx, by, img.SHA256, layout)
	return err
}

// keepLayout stores the parts and records them. Parts of an earlier layout are deleted.
func (f *Service) keepLayout(ctx context.Context, by fleet.Principal, image string, l *espimage.Layout) (ImageLayout,
	error) {
	before, err := f.o.Layouts.Layout(ctx, image)
	if err != nil && !errors.Is(err, fleet.ErrNotFound) {
		return ImageLayout{}, err
	}
	if err := f.storeLayout(ctx, by, image, l); err != nil {
		return ImageLayout{}, err
	}
	f.dropParts(ctx, before)
	f.announce(image)
	return f.o.Layouts.Layout(ctx, image)
}

func (f *Service) storeLayout(ctx context.Context, by fleet.Principal, image string, l *espimage.Layout) error {
	f.stored.RLock()
	defer f.stored.RUnlock()
	kept := ImageLayout{Image: image, FlashSize: l.FlashSize}
	for _, p := range l.Parts {
		part := ImagePart{Kind: p.Kind, Label: fleet.CleanText(p.Label, 16), Offset: p.Offset, Size: p.Data.Size(),
			SHA256: image}
		if p.Kind != espimage.PartApp {
			var err error
			if part.SHA256, err = f.o.Blobs.PutFile(ctx, io.NewSectionReader(p.Data, 0, part.Size), part.Size); err != nil {
				return err
			}
		}
		kept.Parts = append(kept.Parts, part)
	}
	return f.putLayout(ctx, by, kept)
}

func (f *Service) putLayout(ctx context.Context, by fleet.Principal, l ImageLayout) error {
	l.AddedBy, l.AddedAt = by, f.o.Now()
	if err := f.o.Layouts.PutLayout(ctx, by, l); err != nil {
		return err
	}
	f.o.Log.Info("layout of an image kept", "image", l.Image, "parts", len(l.Parts), "problem", l.Problem, "operator",
		by.Name)
	return nil
}

// dropParts deletes the bytes of parts that nothing refers to any more. A sweep of the blob store
// deletes bytes that remain after a failure.
func (f *Service) dropParts(ctx context.Context, l ImageLayout) {
	if len(l.Parts) == 0 {
		return
	}
	f.stored.Lock()
	defer f.stored.Unlock()
	f.dropPartsLocked(context.WithoutCancel(ctx), l)
}

func (f *Service) dropPartsLocked(ctx context.Context, l ImageLayout) {
	var keys []string
	for _, p := range l.Parts {
		keys = append(keys, p.SHA256)
	}
	if err := f.dropBlobs(ctx, keys...); err != nil {
		f.o.Log.Error("bytes of a former layout not deleted", "image", l.Image, "err", err)
	}
}

// dropBlobs deletes those of the blobs that no record names.
func (f *Service) dropBlobs(ctx context.Context, keys ...string) error {
	var named map[string]bool
	if f.o.Layouts != nil {
		var err error
		if named, err = f.o.Layouts.NamedBlobs(ctx, keys); err != nil {
			return err
		}
	}
	var err error
	for _, key := range keys {
		if !named[key] {
			err = errors.Join(err, f.o.Blobs.DeleteFile(ctx, key))
		}
	}
	return err
}
