// SPDX-License-Identifier: Apache-2.0
// Files that change under their reader: an error, or the bytes as they were; never SIGBUS.
#include "harness/file_image.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/stat.h>

#include <cstring>
#include <filesystem>

#include "harness/checkpoint.hpp"
#include "tests/format/folder_test.hpp"
#include "tests/format/safetensors_image.hpp"

namespace sluice::harness {
namespace {

using testing::HasSubstr;

class ChangingFile : public format_test::FolderTest {
 protected:
  // One Llama layer of fp32: tensors of more than a page, so that a mapping would fault.
  [[nodiscard]] std::string layers(int count) const {
    format_test::TensorSet set;
    for (int i = 0; i < count; ++i) {
      const std::string mlp = "model.layers." + std::to_string(i) + ".mlp.";
      for (const char* name : {"gate_proj.weight", "up_proj.weight", "down_proj.weight"}) {
        set.add(mlp + name, {64, 64});
      }
    }
    return write("model.safetensors", set.bytes());
  }
};

float last(const void* matrix) { return static_cast<const float*>(matrix)[64 * 64 - 1]; }

TEST_F(ChangingFile, WhatWasReadStaysWhenTheFileIsCut) {
  const std::string path = write("file", std::string(10000, 'x'));
  const auto image = read_whole(path);
  ASSERT_TRUE(image);
  std::filesystem::resize_file(path, 0);
  EXPECT_EQ(image->text(), std::string(10000, 'x'));
}

// Sparse: nobody has to read two gigabytes of nothing to learn that they are too many.
TEST_F(ChangingFile, AFileThatIsTooLargeIsNotRead) {
  const std::string path = write("file", "x");
  std::filesystem::resize_file(path, kMostWholeBytes + 1);
  const auto image = read_whole(path);
  ASSERT_FALSE(image);
  EXPECT_THAT(std::string(image.error().text()),
              HasSubstr("file: got 100000001 bytes, wanted at most 100000000"));
}

TEST_F(ChangingFile, AFileThatIsCutBeforeItIsReadIsAnError) {
  const std::string path = write("file", std::string(10000, 'x'));
  auto image = FileImage::open(path);
  ASSERT_TRUE(image);
  std::filesystem::resize_file(path, 5000);
  EXPECT_TRUE(image->read(0, 5000));
  const Status cut = image->read(4000, 2000);
  ASSERT_FALSE(cut);
  EXPECT_THAT(std::string(cut.error().text()),
              HasSubstr("became shorter while it was read: 5000 bytes, 10000 when it was opened"));
}

TEST_F(ChangingFile, WhatIsForgottenIsReadAgainAndItsNeighboursStay) {
  constexpr std::size_t kSize = 100000;  // of several pages, of 4 or 64 KiB
  auto image = read_whole(write("file", std::string(kSize, 'x')));
  ASSERT_TRUE(image);
  image->forget(10, kSize - 20);
  EXPECT_EQ(image->text().substr(0, 10), std::string(10, 'x'));
  EXPECT_EQ(image->text().substr(kSize - 10), std::string(10, 'x'));
  EXPECT_EQ(image->text()[70000], '\0');
  ASSERT_TRUE(image->read(10, kSize - 20));
  EXPECT_EQ(image->text(), std::string(kSize, 'x'));
}

TEST_F(ChangingFile, ACheckpointOutlivesItsFile) {
  const std::string path = layers(2);
  const auto checkpoint = open_checkpoint(path);
  ASSERT_TRUE(checkpoint) << checkpoint.error().text();
  std::filesystem::resize_file(path, 0);
  for (const MlpLayer& layer : checkpoint->layers) {
    for (const void* weight : {layer.w_gate, layer.w_up, layer.w_down}) EXPECT_NE(last(weight), 0);
  }
}

TEST_F(ChangingFile, OnlyTheLayersThatAreAskedForAreRead) {
  const auto checkpoint = open_checkpoint(layers(2), 1);
  ASSERT_TRUE(checkpoint) << checkpoint.error().text();
  ASSERT_EQ(checkpoint->layers.size(), 2U);
  EXPECT_NE(last(checkpoint->layers[0].w_down), 0);
  EXPECT_EQ(last(checkpoint->layers[1].w_down), 0);
}

TEST_F(ChangingFile, FewerLayersThanTheConfigSaysAreAnError) {
  const std::string path = layers(2);
  const auto with = [&](int said) {
    write("config.json", "{\"num_hidden_layers\":" + std::to_string(said) + "}");
    const auto checkpoint = open_checkpoint(path);
    return checkpoint ? std::string() : std::string(checkpoint.error().text());
  };
  EXPECT_EQ(with(2), "");
  EXPECT_EQ(with(1), "") << "layers behind the model's are of another use";
  EXPECT_THAT(with(3), HasSubstr("config says num_hidden_layers = 3, the tensors"));
  EXPECT_THAT(with(3), HasSubstr("the tensors are of 2"));
}

}  // namespace
}  // namespace sluice::harness
