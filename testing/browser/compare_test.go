package browser

import (
	"bytes"
	"image"
	"image/color"
	"image/png"
	"os"
	"path/filepath"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// Pictures are compared by the average colour of squares of this many pixels, because another version of the browser or
// of a font may draw a letter differently or move a line by a pixel.
const square = 20

const (
	// maxDistance is how much a square may differ in one of the primary colours, of 255.
	maxDistance = 32
	// maxOthers is the share of squares that may differ by more.
	maxOthers = 0.02
)

// resembles compares the screen with the picture of it in testdata. With FAKEMODEL_UPDATE=1 it makes that anew.
func (b *tab) resembles(name string) {
	b.t.Helper()
	got, path := squares(b.screenshot()), filepath.Join("testdata", name+".png")
	if os.Getenv("FAKEMODEL_UPDATE") != "" {
		b.write(path, got)
	}
	file, err := os.ReadFile(path)
	require.NoError(b.t, err)
	want, err := png.Decode(bytes.NewReader(file))
	require.NoError(b.t, err)
	require.Equal(b.t, want.Bounds(), got.Bounds(), name)
	n, all := 0, got.Bounds().Dx()*got.Bounds().Dy()
	for y := range got.Bounds().Dy() {
		for x := range got.Bounds().Dx() {
			if distance(want.At(x, y), got.At(x, y)) > maxDistance {
				n++
			}
		}
	}
	assert.LessOrEqual(b.t, float64(n)/float64(all), maxOthers,
		"%s: %d of %d squares of %d pixels look different from %s; KPL_SCREENSHOTS=DIRECTORY writes what is shown now",
		name, n, all, square, path)
}

// squares returns the average colours of the squares of a picture.
func squares(picture image.Image) *image.RGBA {
	r := picture.Bounds()
	small := image.NewRGBA(image.Rect(0, 0, r.Dx()/square, r.Dy()/square))
	for y := range small.Rect.Dy() {
		for x := range small.Rect.Dx() {
			var sum [3]uint32
			for i := range square * square {
				c := color.RGBAModel.Convert(picture.At(r.Min.X+x*square+i%square, r.Min.Y+y*square+i/square)).(color.RGBA)
				sum[0], sum[1], sum[2] = sum[0]+uint32(c.R), sum[1]+uint32(c.G), sum[2]+uint32(c.B)
			}
			const n = square * square
			small.SetRGBA(x, y, color.RGBA{uint8(sum[0] / n), uint8(sum[1] / n), uint8(sum[2] / n), 255})
		}
	}
	return small
}

// distance returns how much two colours differ in the primary colour in which they differ most.
func distance(a, b color.Color) int {
	p, q := color.RGBAModel.Convert(a).(color.RGBA), color.RGBAModel.Convert(b).(color.RGBA)
	between := func(x, y uint8) int { return max(int(x)-int(y), int(y)-int(x)) }
	return max(between(p.R, q.R), between(p.G, q.G), between(p.B, q.B))
}
